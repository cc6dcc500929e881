"""Kubernetes' own definitions for the chart's values: `python tools/kubernetes_schema.py` writes them into
helm/values.schema.json, --check only compares.

Values such as `tolerations` and `extraContainers` go to an API server as they are, so their schema is the API's. The
definitions are those of its OpenAPI document, version KUBERNETES, as the package kubernetes-validate carries them
(`make helm-test` installs it; any Python that has it runs this). They are closed, because an API server drops unknown
fields with a warning, or refuses them after other objects have been made; and they hold the ranges of integers, which
validators of JSON Schema do not take from `format`. RULES adds what the document leaves to the API server's code.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

KUBERNETES = "1.36.0"
PACKAGE = "kubernetes_validate"
SCHEMA = Path(__file__).resolve().parent.parent / "helm" / "values.schema.json"
CORE, NETWORKING, META = "io.k8s.api.core.v1.", "io.k8s.api.networking.v1.", "io.k8s.apimachinery.pkg.apis.meta.v1."
ROOTS = (
    *(CORE + name for name in ("Affinity", "Container", "EnvFromSource", "EnvVar", "LocalObjectReference")),
    *(CORE + name for name in ("PodSecurityContext", "SecurityContext", "Toleration", "TopologySpreadConstraint")),
    *(CORE + name for name in ("Volume", "VolumeMount")),
    *(NETWORKING + name for name in ("IngressTLS", "NetworkPolicyEgressRule", "NetworkPolicyPeer")),
)

Schema = dict[str, Any]
INT32 = {"minimum": -(2**31), "maximum": 2**31 - 1}
INT64 = {"minimum": -(2**63), "maximum": 2**63 - 1}
WHOLE: dict[str, Schema] = {  # definitions that are replaced
    META + "FieldsV1": {"type": ["object", "null"], "additionalProperties": {}},
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"$ref": "#/$defs/amount"},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["integer", "string", "null"], **INT32},
}
LABEL = {"pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
ID = {"minimum": 0, "maximum": 2**31 - 1}
PORT = {"minimum": 1, "maximum": 65535}
TEXT = {"minLength": 1}


def one_of(*texts: str) -> Schema:
    """An enumeration, of a field that may be missing."""
    return {"enum": [*texts, None]}


def exactly_one(*fields: str) -> Schema:
    """Of these fields an object has one."""
    return {"oneOf": [{"required": [field]} for field in fields]}


# What Kubernetes 1.36 checks in pkg/apis/core/validation and pkg/apis/networking/validation: keywords by definition, or
# by definition and field.
RULES: dict[str, Schema] = {
    "Container": {"required": ["name", "image"]},
    "Container.image": TEXT,
    "Container.imagePullPolicy": one_of("Always", "IfNotPresent", "Never"),
    "Container.name": LABEL,
    "Container.terminationMessagePolicy": one_of("File", "FallbackToLogsOnError"),
    "ContainerPort.containerPort": PORT,
    "ContainerPort.hostPort": {"minimum": 0, "maximum": 65535},
    "ContainerPort.name": {"pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 15},
    "ContainerPort.protocol": one_of("TCP", "UDP", "SCTP"),
    "EnvFromSource": exactly_one("configMapRef", "secretRef"),
    "EnvVar.name": {"pattern": "^[-._a-zA-Z][-._a-zA-Z0-9]*$"},
    "EnvVarSource": {"minProperties": 1, "maxProperties": 1},
    "HTTPGetAction.scheme": one_of("HTTP", "HTTPS"),
    "IngressTLS.secretName": {"$ref": "#/$defs/name"},
    "LabelSelector.matchLabels": {"$ref": "#/$defs/labels"},
    "LabelSelectorRequirement.operator": {"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
    "LifecycleHandler": exactly_one("exec", "httpGet", "sleep", "tcpSocket"),
    "LocalObjectReference": {"required": ["name"]},
    "LocalObjectReference.name": {"$ref": "#/$defs/name", **TEXT},
    "NetworkPolicyPeer": {"minProperties": 1},
    "NetworkPolicyPort.protocol": one_of("TCP", "UDP", "SCTP"),
    "NodeSelectorRequirement.operator": {"enum": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]},
    "PodAffinityTerm.topologyKey": TEXT,
    "PodSecurityContext.fsGroup": ID,
    "PodSecurityContext.fsGroupChangePolicy": one_of("OnRootMismatch", "Always"),
    "PodSecurityContext.runAsGroup": ID,
    "PodSecurityContext.runAsUser": ID,
    "PreferredSchedulingTerm.weight": {"minimum": 1, "maximum": 100},
    "Probe": exactly_one("exec", "grpc", "httpGet", "tcpSocket"),
    "ResourceRequirements.limits": {"$ref": "#/$defs/resourceList"},
    "ResourceRequirements.requests": {"$ref": "#/$defs/resourceList"},
    "SeccompProfile.type": {"enum": ["Localhost", "RuntimeDefault", "Unconfined"]},
    "SecurityContext.runAsGroup": ID,
    "SecurityContext.runAsUser": ID,
    "Toleration.effect": one_of("", "NoSchedule", "PreferNoSchedule", "NoExecute"),
    "Toleration.operator": one_of("", "Exists", "Equal", "Lt", "Gt"),
    "TopologySpreadConstraint.maxSkew": {"minimum": 1},
    "TopologySpreadConstraint.minDomains": {"minimum": 1},
    "TopologySpreadConstraint.topologyKey": TEXT,
    "TopologySpreadConstraint.whenUnsatisfiable": {"enum": ["DoNotSchedule", "ScheduleAnyway"]},
    "Volume": {"maxProperties": 2},  # its name and one source
    "Volume.name": LABEL,
    "VolumeMount.mountPath": TEXT,
    "VolumeMount.name": LABEL,
    "WeightedPodAffinityTerm.weight": {"minimum": 1, "maximum": 100},
}


def definitions(package: str = PACKAGE, version: str = KUBERNETES) -> dict[str, Schema]:
    """All definitions of one version of the API. Raises ModuleNotFoundError without the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no package {package}")
    file = Path(spec.origin).parent / "kubernetes-json-schema" / f"v{version}-local" / "_definitions.json"
    found: dict[str, Schema] = json.loads(file.read_text())["$defs"]
    return found


def references(node: Any) -> Iterator[str]:
    """Names of the definitions that a schema refers to."""
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].rpartition("/")[2]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def closed(node: Any) -> Any:
    """A schema without prose, with ranges instead of formats, and with no fields but those it names."""
    if isinstance(node, list):
        return [closed(each) for each in node]
    if not isinstance(node, dict):
        return node
    ranges = {"int32": INT32, "int64": INT64}.get(node.get("format", ""), {})
    kept = {key: value for key, value in node.items() if key in {"$ref", "enum", "required", "type"}}
    if "properties" in node:
        kept["properties"] = {name: closed(field) for name, field in sorted(node["properties"].items())}
        kept["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            kept[key] = closed(node[key])
    return {**ranges, **kept}


def with_rules(name: str, schema: Schema) -> Schema:
    """A definition with what RULES say of it and of its fields."""
    short = name.rpartition(".")[2]
    fields = {field: found | RULES.get(f"{short}.{field}", {}) for field, found in schema.get("properties", {}).items()}
    for field, rule in RULES.items():
        if field.startswith(f"{short}.") and "$ref" in rule:
            fields[field.partition(".")[2]] = rule
    return schema | ({"properties": fields} if fields else {}) | RULES.get(short, {})


def needed(api: dict[str, Schema]) -> dict[str, Schema]:
    """ROOTS and what they refer to, in the order of names."""
    found: dict[str, Schema] = {}
    waiting = list(ROOTS)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = WHOLE.get(name) or with_rules(name, closed(api[name]))
            waiting += [each for each in references(found[name]) if each in api]
    return dict(sorted(found.items()))


def generated(text: str) -> str:
    """values.schema.json with this version's definitions after the chart's own."""
    schema = json.loads(text)
    own = {name: each for name, each in schema["$defs"].items() if not name.startswith("io.k8s.")}
    schema["$defs"] = own | needed(definitions())
    return json.dumps(schema, indent=2) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 when --check finds other definitions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args(argv).check
    before = SCHEMA.read_text()
    after = generated(before)
    if after == before:
        return 0
    print(f"{SCHEMA.name} {'is stale' if check else 'written'}", file=sys.stderr)
    if not check:
        SCHEMA.write_text(after)
    return int(check)


if __name__ == "__main__":
    sys.exit(main())
