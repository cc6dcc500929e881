"""Rules that Kubernetes 1.36 checks in code but not in its OpenAPI document, as keywords of JSON Schema.

RULES has them by definition, or by definition and field; tools/kubernetes_schema.py adds them to the generated
definitions. Their source is pkg/apis/core/validation and pkg/apis/networking/validation of Kubernetes.
"""

from __future__ import annotations

from tools.kubernetes_formats import (
    ACCESS_MODES,
    CASELESS,
    CIDR,
    CPU_DIVISORS,
    DIVISORS,
    DNS_NAME,
    ID,
    IN_ENV,
    IN_FILE,
    IPV4,
    IPV6,
    LABEL,
    LABEL_VALUE,
    NAME,
    NONE,
    PORT_NAME,
    PREFIX,
    RESOURCE,
    SHARED,
    SOME,
    TEXT,
    WORD,
    Schema,
    each,
    exactly_one,
    has,
    lacks,
    one_of,
    where,
    whole,
)

RULES: dict[str, Schema] = {name: rule for rule, names in SHARED for name in names.split()} | {
    "AppArmorProfile.localhostProfile": whole(r"\S(.*\S)?", 4095),
    "AzureDiskVolumeSource": {
        "allOf": [
            where("kind", ("Managed",), {"properties": {"diskURI": {"pattern": "^/subscriptions/"}}}),
            {
                "if": {"not": {"properties": {"kind": {"const": "Managed"}}, "required": ["kind"]}},
                "then": {"properties": {"diskURI": {"pattern": "^https://"}}},
            },
        ]
    },
    "AzureDiskVolumeSource.cachingMode": one_of("None", "ReadOnly", "ReadWrite"),
    "AzureDiskVolumeSource.kind": one_of("Shared", "Dedicated", "Managed"),
    "CSIVolumeSource.driver": whole(CASELESS, 63),
    "ClusterTrustBundleProjection": exactly_one("name", "signerName")
    | {"if": has("name"), "then": lacks("labelSelector")},
    "ClusterTrustBundleProjection.name": whole(rf"({DNS_NAME}:)*{DNS_NAME}", 253),
    "Container": {"required": ["name", "image"], "if": has("restartPolicyRules"), "then": has("restartPolicy")},
    "Container.readinessProbe": lacks("terminationGracePeriodSeconds"),
    "Container.resizePolicy": {
        "allOf": [
            {"contains": {"properties": {"resourceName": {"const": name}}}, "minContains": 0, "maxContains": 1}
            for name in ("cpu", "memory")
        ]
    },
    "Container.restartPolicy": one_of("Always", "OnFailure", "Never"),
    "Container.restartPolicyRules": {"maxItems": 20},
    "Container.terminationMessagePolicy": one_of("File", "FallbackToLogsOnError"),
    "ContainerPort.hostIP": whole(rf"({IPV4}|{IPV6})?"),
    "ContainerPort.hostPort": {"minimum": 0, "maximum": 65535},
    "ContainerPort.name": PORT_NAME,
    "ContainerResizePolicy.resourceName": {"enum": ["cpu", "memory"]},
    "ContainerResizePolicy.restartPolicy": {"enum": ["NotRequired", "RestartContainer"]},
    "ContainerRestartRule": {"required": ["exitCodes"]},
    "ContainerRestartRule.action": {"enum": ["Restart", "RestartAllContainers"]},
    "ContainerRestartRuleOnExitCodes.operator": {"enum": ["In", "NotIn"]},
    "ContainerRestartRuleOnExitCodes.values": {"maxItems": 255},
    "DownwardAPIVolumeFile": exactly_one("fieldRef", "resourceFieldRef"),
    "DownwardAPIVolumeFile.fieldRef": {"properties": {"fieldPath": IN_FILE}},
    "DownwardAPIVolumeFile.resourceFieldRef": {
        "required": ["containerName"],
        "properties": {"containerName": {"type": "string"} | LABEL},
    },
    "EmptyDirVolumeSource.medium": whole("(Memory|HugePages(-[1-9][0-9]*([KMGTPE]i)?)?)?"),
    "EnvFromSource": exactly_one("configMapRef", "secretRef"),
    "EnvFromSource.prefix": PREFIX,
    "EnvVarSource": exactly_one("configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef"),
    "EnvVarSource.fieldRef": {"properties": {"fieldPath": IN_ENV}},
    "EphemeralVolumeSource": {"required": ["volumeClaimTemplate"]},
    "ExecAction": {"required": ["command"]},
    "FCVolumeSource": exactly_one("targetWWNs", "wwids") | {"if": has("targetWWNs"), "then": has("lun")},
    "FlexVolumeSource.options": {"patternProperties": {r"^(.*\.)?([kK]ubernetes|[kK]8s)\.io(/|$)": False}},
    "FlockerVolumeSource": exactly_one("datasetName", "datasetUUID"),
    "FlockerVolumeSource.datasetName": whole("[^/]+"),
    "HTTPGetAction.scheme": one_of("HTTP", "HTTPS"),
    "HTTPHeader.name": whole("[-A-Za-z0-9]+"),
    "HostPathVolumeSource.type": one_of(
        "", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"
    ),
    "IPBlock.cidr": CIDR,
    "IPBlock.except": each(CIDR),
    "ISCSIVolumeSource": {
        "allOf": [where(field, (True,), has("secretRef")) for field in ("chapAuthDiscovery", "chapAuthSession")]
    },
    "ImageVolumeSource": {"required": ["reference"]},
    "IngressTLS.hosts": each({"$ref": "#/$defs/host"}),
    "IngressTLS.secretName": {"$ref": "#/$defs/name"},
    "LabelSelectorRequirement.operator": {"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
    "Lifecycle.stopSignal": {"type": "null"},  # needs spec.os.name, which the chart does not set
    "LifecycleHandler": exactly_one("exec", "httpGet", "sleep", "tcpSocket"),
    "NFSVolumeSource.path": {"pattern": "^/"},
    "NetworkPolicyPeer": {"anyOf": [has("ipBlock"), has("namespaceSelector"), has("podSelector")]}
    | {"if": has("ipBlock"), "then": lacks("podSelector", "namespaceSelector")},
    "NetworkPolicyPort": {"if": has("endPort"), "then": has("port") | {"properties": {"port": {"type": "integer"}}}},
    "NodeSelectorRequirement.operator": {"enum": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]},
    "NodeSelectorTerm.matchFields": each(
        {
            "properties": {
                "key": {"const": "metadata.name"},
                "operator": {"enum": ["In", "NotIn"]},
                "values": SOME | {"maxItems": 1} | each(NAME),
            }
        }
    ),
    "ObjectFieldSelector.apiVersion": one_of("v1"),
    "ObjectMeta.annotations": {"$ref": "#/$defs/annotations"},
    "PersistentVolumeClaimSpec": {"required": ["accessModes", "resources"]},
    "PersistentVolumeClaimSpec.accessModes": ACCESS_MODES,
    "PersistentVolumeClaimSpec.volumeMode": one_of("Block", "Filesystem"),
    "PodAffinityTerm": {
        "if": {"anyOf": [has("matchLabelKeys"), has("mismatchLabelKeys")]},
        "then": has("labelSelector"),
    },
    "PodAffinityTerm.namespaces": each(LABEL),
    "PodCertificateProjection": {
        "anyOf": [has("certificateChainPath"), has("credentialBundlePath"), has("keyPath")],
    },
    "PodCertificateProjection.keyType": {
        "enum": ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"]
    },
    "PodCertificateProjection.maxExpirationSeconds": {"minimum": 3600, "maximum": 7862400},
    "PodSecurityContext.fsGroupChangePolicy": one_of("OnRootMismatch", "Always"),
    "PodSecurityContext.seLinuxChangePolicy": one_of("MountOption", "Recursive"),
    "PodSecurityContext.supplementalGroups": each(ID),
    "PodSecurityContext.supplementalGroupsPolicy": one_of("Merge", "Strict"),
    "Probe": exactly_one("exec", "grpc", "httpGet", "tcpSocket"),
    "QuobyteVolumeSource.registry": whole("[^:,]+:[0-9]+(,[^:,]+:[0-9]+)*"),
    "QuobyteVolumeSource.tenant": {"maxLength": 64},
    "ResourceFieldSelector": {
        "if": {"properties": {"resource": {"pattern": "cpu$"}}},
        "then": CPU_DIVISORS,
        "else": DIVISORS,
    },
    "ResourceFieldSelector.resource": RESOURCE,
    "ResourceRequirements.claims": NONE,  # the chart makes no pod with resourceClaims
    "SecretVolumeSource": {"required": ["secretName"]},
    "SecurityContext": where(
        "allowPrivilegeEscalation",
        (False,),
        {
            "properties": {
                "capabilities": {"properties": {"add": each({"not": {"const": "CAP_SYS_ADMIN"}})}},
                "privileged": {"enum": [False, None]},
            }
        },
    ),
    "SecurityContext.procMount": one_of("Default"),  # Unmasked needs hostUsers, which the chart does not set
    "ServiceAccountTokenProjection.expirationSeconds": {"minimum": 600, "maximum": 2**32},
    "Sysctl.name": whole("([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?", 253),
    "Toleration.effect": one_of("", "NoSchedule", "PreferNoSchedule", "NoExecute"),
    "Toleration.key": whole(f"(({DNS_NAME}/)?{WORD})?"),
    "Toleration.operator": one_of("", "Exists", "Equal"),  # Lt and Gt need a feature gate that is off
    "Toleration.value": LABEL_VALUE,
    "TopologySpreadConstraint.whenUnsatisfiable": {"enum": ["DoNotSchedule", "ScheduleAnyway"]},
    "Volume": {"maxProperties": 2},  # its name and one source
    "VolumeMount": {
        "allOf": [
            {"not": {"properties": {"subPath": TEXT, "subPathExpr": TEXT}, "required": ["subPath", "subPathExpr"]}},
            where(
                "recursiveReadOnly",
                ("Enabled", "IfPossible"),
                {
                    "required": ["readOnly"],
                    "properties": {"readOnly": {"const": True}, "mountPropagation": one_of("None")},
                },
            ),
        ]
    },
    "VolumeMount.mountPropagation": one_of("None", "HostToContainer", "Bidirectional"),
    "VolumeMount.recursiveReadOnly": one_of("Disabled", "IfPossible", "Enabled"),
    "VolumeProjection": {"maxProperties": 1},
    "VolumeResourceRequirements": {"required": ["requests"]},
    "VolumeResourceRequirements.requests": {
        "required": ["storage"],
        "properties": {"storage": {"$ref": "#/$defs/size"}},
    },
    "WindowsSecurityContextOptions.gmsaCredentialSpec": {"minLength": 1, "maxLength": 65536},
    "WindowsSecurityContextOptions.hostProcess": {"enum": [False, None]},  # needs hostNetwork
    "WindowsSecurityContextOptions.runAsUserName": whole(
        r"([^\x00-\x1f\\]{1,255}\\)?[^\x00-\x1f\"/\\:;|=,+*?<>@\[\]]*[^\x00-\x1f\"/\\:;|=,+*?<>@\[\]. ]"
        r"[^\x00-\x1f\"/\\:;|=,+*?<>@\[\]]*"
    )
    | {"allOf": [{"pattern": r"^([^\\]*\\)?[^\\]{1,104}$"}]},
}
