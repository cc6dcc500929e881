"""Kubernetes' definitions for the chart's values: `python -m tools.kubernetes_schema` writes helm/values.schema.json.

With --check it only compares. Values such as `tolerations` and `extraContainers` go to an API server unchanged, so
their schema is the API's: the definitions of its OpenAPI document, version KUBERNETES, as the package
kubernetes-validate has them (`make helm-test` installs it; any Python with it can run this). They are closed, because
an API server drops unknown fields with a warning, or refuses them after other objects have been made; required fields
are not null; and they have the ranges of integers, which validators of JSON Schema do not take from `format`.
tools/kubernetes_rules.py adds the rules that the API server checks in code.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.kubernetes_formats import OWN, PORT, PORT_NAME, Schema
from tools.kubernetes_rules import RULES

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

INT32 = {"minimum": -(2**31), "maximum": 2**31 - 1}
INT64 = {"minimum": -(2**63), "maximum": 2**63 - 1}
WHOLE: dict[str, Schema] = {  # definitions that are replaced
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"$ref": "#/$defs/amount"},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["integer", "string", "null"], **PORT, **PORT_NAME},
}
ONLY = {META + "ObjectMeta": ("annotations", "labels")}  # the only fields of a claim inside of a volume


def definitions(package: str = PACKAGE, version: str = KUBERNETES) -> dict[str, Schema]:
    """Return all definitions of one version of the API. Raises ModuleNotFoundError without the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no package {package}")
    file = Path(spec.origin).parent / "kubernetes-json-schema" / f"v{version}-local" / "_definitions.json"
    found: dict[str, Schema] = json.loads(file.read_text())["$defs"]
    return found


def references(node: Any) -> Iterator[str]:
    """Yield the names of the definitions that a schema refers to."""
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].rpartition("/")[2]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def closed(node: Any) -> Any:
    """Return a schema without prose, with ranges instead of formats, that refuses unnamed fields."""
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


def joined(first: Schema, second: Schema) -> Schema:
    """Join two schemas; lists of required fields and of alternatives are appended."""
    both = first.keys() & second.keys()
    merged = {key: [*first[key], *second[key]] for key in both & {"allOf"}}
    merged |= {key: sorted({*first[key], *second[key]}) for key in both & {"required"}}
    merged |= {key: first[key] | second[key] for key in both & {"properties", "items"}}
    return first | second | merged


def present(schema: Schema) -> Schema:
    """Return the schema of a field without null."""
    if "$ref" in schema:
        return {"not": {"type": "null"}} | schema
    if not isinstance(schema.get("type"), list):
        return schema
    kinds = [each for each in schema["type"] if each != "null"]
    return schema | {"type": kinds[0] if len(kinds) == 1 else kinds}


def with_rules(name: str, schema: Schema) -> Schema:
    """Add the RULES of a definition and of its fields."""
    short = name.rpartition(".")[2]
    schema = joined(schema, RULES.get(short, {}))
    fields = {}
    known = schema.get("properties", {})
    for field in ONLY.get(name, tuple(known)):
        found, rule = known[field], RULES.get(f"{short}.{field}", {})
        whole = rule if "$ref" in rule else joined(found, rule)
        fields[field] = present(whole) if field in schema.get("required", ()) else whole
    return schema | ({"properties": fields} if fields else {})


def needed(api: dict[str, Schema]) -> dict[str, Schema]:
    """Return ROOTS and the definitions that they refer to, sorted by name."""
    found: dict[str, Schema] = {}
    waiting = list(ROOTS)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = WHOLE.get(name) or with_rules(name, closed(api[name]))
            waiting += [each for each in references(found[name]) if each in api]
    return dict(sorted(found.items()))


def generated(text: str) -> str:
    """Return values.schema.json with this version's definitions after the chart's own."""
    schema = json.loads(text)
    own = {name: each for name, each in schema["$defs"].items() if not name.startswith("io.k8s.")}
    schema["$defs"] = own | OWN | needed(definitions())
    return json.dumps(schema, indent=2) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Return exit code 1 if --check finds other definitions."""
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
