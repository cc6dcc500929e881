"""Formats of Kubernetes 1.36 and forms of rules, as keywords of JSON Schema, for tools/kubernetes_rules.py.

OWN has definitions that several values of the chart share.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_NAME = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
CASELESS = DNS_NAME.replace("a-z", "a-zA-Z")
WORD = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
ELEMENT = r"([^/.][^/]*|\.([^/.][^/]*)?|\.\.[^/]+)"  # of a path, and not ".."
OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
HEX = "[0-9a-fA-F]{1,4}"
IPV4 = rf"{OCTET}(\.{OCTET}){{3}}"
IPV6 = "|".join(
    [
        f"({HEX}:){{7}}{HEX}",
        f"({HEX}:){{1,7}}:",
        *(f"({HEX}:){{1,{7 - tail}}}(:{HEX}){{1,{tail}}}" for tail in range(1, 7)),
        f":(:{HEX}){{1,7}}",
        "::",
    ]
)
CIDR_TEXT = rf"({IPV4}/(3[0-2]|[12]?[0-9])|({IPV6})/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))"
INITIATOR = r"(iqn\.[0-9]{4}-[0-9]{2}\.[-.a-zA-Z0-9]+:[^,;*&$|\s]+|eui\.[a-zA-Z0-9]{16}|naa\.[a-zA-Z0-9]{32})"
PATH_IN_IMAGE = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
SIGNER = rf"{DNS_NAME}/{DNS_NAME}"


def whole(pattern: str, length: int | None = None) -> Schema:
    """Return a rule for text that matches as a whole."""
    return {"pattern": f"^({pattern})$"} | ({"maxLength": length} if length else {})


def one_of(*texts: str) -> Schema:
    """Return a rule for one of these texts, or null: the field may be missing."""
    return {"enum": [*texts, None]}


def each(schema: Schema) -> Schema:
    """Return a rule for the items of a list."""
    return {"items": schema}


def has(*fields: str) -> Schema:
    """Return a rule for an object that has these fields, and not as null."""
    return {"required": list(fields), "properties": {field: {"not": {"type": "null"}} for field in fields}}


def lacks(*fields: str) -> Schema:
    """Return a rule for an object that has none of these fields."""
    return {"properties": {field: {"type": "null"} for field in fields}}


def exactly_one(*fields: str) -> Schema:
    """Return a rule for an object that has exactly one of these fields."""
    return {"oneOf": [has(field) for field in fields]}


def where(field: str, values: tuple[Any, ...], rule: Schema) -> Schema:
    """Apply a rule to objects whose field has one of these values."""
    return {"if": {"properties": {field: {"enum": list(values)}}, "required": [field]}, "then": rule}


def keyed(pattern: str, value: Schema, *refused: str) -> Schema:
    """Return a rule for an object whose keys match a pattern, with at most 253 characters before their slash."""
    no = {each: False for each in ("^[^/]{254,}/", *refused)}
    return {"patternProperties": {f"^({pattern})$": value, **no}, "additionalProperties": False}


TEXT: Schema = {"minLength": 1}
SOME: Schema = {"type": "array", "minItems": 1}
NONE: Schema = {"maxItems": 0}
LABEL = whole(DNS_LABEL, 63)
NAME = whole(DNS_NAME, 253)
LABEL_KEY: Schema = whole(f"({DNS_NAME}/)?{WORD}") | {"allOf": [whole("([^/]{1,253}/)?[^/]+")]}
LABEL_VALUE = whole(f"({WORD})?")
DATA_KEY = whole(r"(\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*)", 253)
VARIABLE = whole(r"([-_a-zA-Z]|\.[-_a-zA-Z0-9])[-._a-zA-Z0-9]*")
PREFIX = whole(r"(([-_a-zA-Z]|\.[-_a-zA-Z0-9])[-._a-zA-Z0-9]*)?")
BELOW = whole(f"({ELEMENT}(/{ELEMENT}?)*)?")  # a relative path that does not leave its folder
FILE = whole(rf"([^/.][^/]*|\.([^/.][^/]*)?)(/{ELEMENT}?)*")  # and that is no name which the kubelet uses
OWN_FILE = whole(rf"(([^/.][^/]*|\.([^/.][^/]*)?)(/{ELEMENT}?)*)?")
FORWARD = whole(f"{ELEMENT}?(/{ELEMENT}?)*")  # a path without ".."
CIDR = whole(CIDR_TEXT)
IMAGE = whole(
    rf"(([a-zA-Z0-9][-.a-zA-Z0-9]*|\[[0-9a-fA-F:]+\])(:[0-9]+)?/)?{PATH_IN_IMAGE}(/{PATH_IN_IMAGE})*"
    r"(:[a-zA-Z0-9_][-._a-zA-Z0-9]{0,127})?(@sha256:[0-9a-f]{64})?"
)
PORT_NAME: Schema = {"pattern": "^[a-z0-9]+(-[a-z0-9]+)*$", "maxLength": 15, "allOf": [{"pattern": "[a-z]"}]}
PORT: Schema = {"minimum": 1, "maximum": 65535}
BYTE: Schema = {"minimum": 0, "maximum": 255}
COUNT: Schema = {"minimum": 0}
ID: Schema = {"minimum": 0, "maximum": 2**31 - 1}
MODE: Schema = {"minimum": 0, "maximum": 0o777}
RESOURCE = whole(r"(limits|requests)\.(cpu|memory|ephemeral-storage|hugepages-.+)")
SIZES = ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")
DIVISORS = {"properties": {"divisor": {"enum": [0, 1, "0", *SIZES, None]}}}
CPU_DIVISORS = {"properties": {"divisor": {"enum": [0, 1, "0", "1", "1m", 0.001, None]}}}
SUBSCRIPT = rf"metadata\.(annotations|labels)\['({DNS_NAME}/)?{WORD}'\]"
IN_ENV = whole(
    rf"metadata\.(name|namespace|uid)|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?)|{SUBSCRIPT}"
)
IN_FILE = whole(rf"metadata\.(name|namespace|uid|labels|annotations)|{SUBSCRIPT}")
PROFILE = where("type", ("Localhost",), has("localhostProfile")) | {"else": lacks("localhostProfile")}
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
ONCE: Schema = {"properties": {"successThreshold": {"enum": [0, 1, None]}}}
ACCESS_MODES: Schema = SOME | {
    "items": {"enum": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]},
    "if": {"contains": {"const": "ReadWriteOncePod"}},
    "then": {"maxItems": 1},
}
REQUIREMENT: Schema = {
    "allOf": [
        where("operator", ("In", "NotIn"), has("values") | {"properties": {"values": SOME}}),
        where("operator", ("Exists", "DoesNotExist"), {"properties": {"values": NONE}}),
        where("operator", ("Gt", "Lt"), has("values") | {"properties": {"values": SOME | {"maxItems": 1}}}),
    ]
}
DATA_SOURCE = {
    "allOf": [{"if": {"not": has("apiGroup")}, "then": {"properties": {"kind": one_of("PersistentVolumeClaim")}}}]
}

NOT_FOR_INIT: Schema = lacks("lifecycle", *PROBES)
NOT_FOR_INIT["properties"]["resizePolicy"] = each({"properties": {"restartPolicy": {"const": "NotRequired"}}})
QUANTITY: Schema = {
    "type": ["string", "number"],
    "pattern": r"^[0-9]+(\.[0-9]+)?([eE][0-9]+|[KMGTPE]i|[numkMGTPE])?$",
    "minimum": 0,
}
RESOURCE_NAME = rf"cpu|memory|ephemeral-storage|hugepages-[1-9][0-9]*[KMG]i|{DNS_NAME}/{WORD}"
POSITIVE: Schema = {
    "pattern": r"^(0*[1-9][0-9]*(\.[0-9]+)?|0+\.0*[1-9][0-9]*)([eE][0-9]+|[KMGTPE]i|[kMGTPE])?$",
    "exclusiveMinimum": 0,
}
OWN: dict[str, Schema] = {
    "name": {"type": "string"} | whole(f"({DNS_NAME})?", 253),
    "labels": {"type": "object"} | keyed(f"({DNS_NAME}/)?{WORD}", {"type": "string"} | LABEL_VALUE),
    "annotations": {"type": "object"} | keyed(f"({CASELESS}/)?{WORD}", {"type": "string"}),
    "resourceList": {"type": ["object", "null"]} | keyed(RESOURCE_NAME, QUANTITY, "^requests[.]"),
    "size": {"type": "string"} | POSITIVE,
    "cidrs": {"type": "string"} | whole(rf"\s*{CIDR_TEXT}\s*(,\s*{CIDR_TEXT}\s*)*"),
    "initContainer": {"$ref": "#/$defs/io.k8s.api.core.v1.Container"}
    | {"if": {"not": {"properties": {"restartPolicy": {"const": "Always"}}, "required": ["restartPolicy"]}}}
    | {"then": NOT_FOR_INIT},
}

SHARED: tuple[tuple[Schema, str], ...] = (  # rules of several fields, or definitions
    (
        BELOW,
        "GitRepoVolumeSource.directory SeccompProfile.localhostProfile VolumeMount.subPath VolumeMount.subPathExpr",
    ),
    (
        BYTE,
        "AWSElasticBlockStoreVolumeSource.partition FCVolumeSource.lun GCEPersistentDiskVolumeSource.partition "
        "ISCSIVolumeSource.lun",
    ),
    (
        COUNT,
        "Probe.failureThreshold Probe.initialDelaySeconds Probe.periodSeconds Probe.successThreshold "
        "Probe.timeoutSeconds SleepAction.seconds",
    ),
    (DATA_KEY, "ConfigMapKeySelector.key KeyToPath.key SecretKeySelector.key"),
    (DATA_SOURCE, "PersistentVolumeClaimSpec.dataSource PersistentVolumeClaimSpec.dataSourceRef"),
    (
        FILE,
        "ClusterTrustBundleProjection.path DownwardAPIVolumeFile.path KeyToPath.path "
        "ServiceAccountTokenProjection.path",
    ),
    (
        ID,
        "PodSecurityContext.fsGroup PodSecurityContext.runAsGroup PodSecurityContext.runAsUser "
        "SecurityContext.runAsGroup SecurityContext.runAsUser",
    ),
    (IMAGE, "Container.image ImageVolumeSource.reference"),
    (
        LABEL,
        "Container.name FileKeySelector.volumeName StorageOSVolumeSource.volumeName "
        "StorageOSVolumeSource.volumeNamespace TypedObjectReference.namespace Volume.name VolumeDevice.name "
        "VolumeMount.name",
    ),
    (LABEL_KEY, "LabelSelectorRequirement.key NodeSelectorRequirement.key PodAffinityTerm.topologyKey"),
    (
        MODE,
        "ConfigMapVolumeSource.defaultMode DownwardAPIVolumeFile.mode DownwardAPIVolumeSource.defaultMode "
        "KeyToPath.mode ProjectedVolumeSource.defaultMode SecretVolumeSource.defaultMode",
    ),
    (
        NAME,
        "ConfigMapEnvSource.name ConfigMapKeySelector.name ConfigMapProjection.name ConfigMapVolumeSource.name "
        "LocalObjectReference.name PersistentVolumeClaimVolumeSource.claimName SecretEnvSource.name "
        "SecretKeySelector.name SecretProjection.name SecretVolumeSource.secretName "
        "TypedLocalObjectReference.apiGroup TypedObjectReference.apiGroup "
        "WindowsSecurityContextOptions.gmsaCredentialSpecName",
    ),
    (ONCE, "Container.livenessProbe Container.startupProbe"),
    (
        OWN_FILE,
        "PodCertificateProjection.certificateChainPath PodCertificateProjection.credentialBundlePath "
        "PodCertificateProjection.keyPath",
    ),
    (PORT, "ContainerPort.containerPort GRPCAction.port NetworkPolicyPort.endPort"),
    (PROFILE, "AppArmorProfile SeccompProfile"),
    (REQUIREMENT, "LabelSelectorRequirement NodeSelectorRequirement"),
    (SOME, "CephFSVolumeSource.monitors ExecAction.command NodeSelector.nodeSelectorTerms RBDVolumeSource.monitors"),
    (
        TEXT,
        "AWSElasticBlockStoreVolumeSource.volumeID AzureDiskVolumeSource.diskName AzureFileVolumeSource.secretName "
        "AzureFileVolumeSource.shareName CinderVolumeSource.volumeID FlexVolumeSource.driver "
        "FlockerVolumeSource.datasetUUID GCEPersistentDiskVolumeSource.pdName GitRepoVolumeSource.repository "
        "GlusterfsVolumeSource.endpoints GlusterfsVolumeSource.path ISCSIVolumeSource.targetPortal "
        "NFSVolumeSource.server PhotonPersistentDiskVolumeSource.pdID PortworxVolumeSource.volumeID "
        "QuobyteVolumeSource.volume RBDVolumeSource.image ScaleIOVolumeSource.gateway ScaleIOVolumeSource.system "
        "ScaleIOVolumeSource.volumeName TopologySpreadConstraint.topologyKey TypedLocalObjectReference.name "
        "TypedObjectReference.name VolumeMount.mountPath VsphereVirtualDiskVolumeSource.volumePath",
    ),
    (TEXT | FORWARD, "FileKeySelector.path HostPathVolumeSource.path VolumeDevice.devicePath"),
    (VARIABLE, "EnvVar.name FileKeySelector.key"),
    (
        each(LABEL_KEY),
        "PodAffinityTerm.matchLabelKeys PodAffinityTerm.mismatchLabelKeys TopologySpreadConstraint.matchLabelKeys",
    ),
    (each(LABEL_VALUE), "LabelSelectorRequirement.values NodeSelectorRequirement.values"),
    (one_of("Always", "IfNotPresent", "Never"), "Container.imagePullPolicy ImageVolumeSource.pullPolicy"),
    (
        one_of("Honor", "Ignore"),
        "TopologySpreadConstraint.nodeAffinityPolicy TopologySpreadConstraint.nodeTaintsPolicy",
    ),
    (one_of("TCP", "UDP", "SCTP"), "ContainerPort.protocol NetworkPolicyPort.protocol"),
    (whole(INITIATOR), "ISCSIVolumeSource.initiatorName ISCSIVolumeSource.iqn"),
    (whole(SIGNER), "ClusterTrustBundleProjection.signerName PodCertificateProjection.signerName"),
    (
        whole(f"({DNS_NAME})?", 253),
        "PersistentVolumeClaimSpec.storageClassName PersistentVolumeClaimSpec.volumeAttributesClassName",
    ),
    ({"$ref": "#/$defs/labels"}, "LabelSelector.matchLabels ObjectMeta.labels"),
    ({"$ref": "#/$defs/resourceList"}, "ResourceRequirements.limits ResourceRequirements.requests"),
    ({"enum": ["Localhost", "RuntimeDefault", "Unconfined"]}, "AppArmorProfile.type SeccompProfile.type"),
    ({"minItems": 1}, "FCVolumeSource.targetWWNs FCVolumeSource.wwids"),
    ({"minimum": 1, "maximum": 100}, "PreferredSchedulingTerm.weight WeightedPodAffinityTerm.weight"),
    (
        {"minimum": 1},
        "Probe.terminationGracePeriodSeconds TopologySpreadConstraint.maxSkew TopologySpreadConstraint.minDomains",
    ),
    (
        {"required": ["name"]},
        "ConfigMapEnvSource ConfigMapKeySelector ConfigMapProjection ConfigMapVolumeSource LocalObjectReference "
        "SecretEnvSource SecretKeySelector SecretProjection",
    ),
    ({"required": ["volumeName"]}, "ScaleIOVolumeSource StorageOSVolumeSource"),
)
