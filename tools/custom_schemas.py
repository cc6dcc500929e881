"""Schemas of other projects' objects that the chart makes: `python -m tools.custom_schemas` writes those of the tests.

They come from the definitions (CustomResourceDefinition) of the releases in SOURCES: downloaded, or read from the
folder `--source` under their names. Kept are fields, types, ranges and patterns; prose, rules in CEL and `status` are
not. Objects are closed, because an API server drops unknown fields.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).resolve().parent.parent / "tests" / "deploy" / "custom_schemas.json.gz"
GITHUB = "https://raw.githubusercontent.com"
OPERATOR = "prometheus-operator/prometheus-operator/v0.93.0/example/prometheus-operator-crd/monitoring.coreos.com_"
GATEWAY_API = "kubernetes-sigs/gateway-api/v1.6.1/config/crd/standard/gateway.networking.k8s.io_"
INFERENCE = "kubernetes-sigs/gateway-api-inference-extension/v1.6.0/config/crd/bases/inference.networking.k8s.io_"
SOURCES = (
    "ray-project/kuberay/v1.7.0/ray-operator/config/crd/bases/ray.io_rayservices.yaml",
    "kubernetes-sigs/lws/v0.9.0/config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
    INFERENCE + "inferencepools.yaml",
    GATEWAY_API + "httproutes.yaml",
    "kedacore/keda/v2.20.2/config/crd/bases/keda.sh_scaledobjects.yaml",
    OPERATOR + "servicemonitors.yaml",
    OPERATOR + "prometheusrules.yaml",
)
KEPT = {
    *("enum", "required", "type", "pattern", "format", "minimum", "maximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties", "uniqueItems"),
}
ANYTHING = "x-kubernetes-preserve-unknown-fields"


def closed(node: dict[str, Any]) -> dict[str, Any]:
    """Return a structural schema as JSON Schema that refuses unnamed fields."""
    kept = {key: value for key, value in node.items() if key in KEPT}
    if node.get("x-kubernetes-int-or-string"):
        kept["type"] = ["integer", "string"]
    if "properties" in node:
        kept["properties"] = {name: closed(each) for name, each in node["properties"].items()}
        kept |= {} if node.get(ANYTHING) else {"additionalProperties": False}
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            kept[key] = closed(node[key])
    return kept


def schemas(definition: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the version that a definition stores, by `apiVersion kind`."""
    spec = definition["spec"]
    (version,) = (each for each in spec["versions"] if each["storage"])
    schema = closed(version["schema"]["openAPIV3Schema"])
    del schema["properties"]["status"]
    schema["properties"]["metadata"] = {"type": "object"}
    return {f"{spec['group']}/{version['name']} {spec['names']['kind']}": schema}


def read(source: str, folder: Path | None) -> dict[str, Any]:
    """Return a definition. Raises OSError."""
    if folder is not None:
        text = (folder / source.rpartition("/")[2]).read_text()
    else:
        with urllib.request.urlopen(f"{GITHUB}/{source}", timeout=60) as response:
            text = response.read().decode()
    definition: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return definition


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(prog="python -m tools.custom_schemas", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, help="folder with the definitions (default: they are downloaded)")
    folder = parser.parse_args(argv).source
    found: dict[str, Any] = {}
    for source in SOURCES:
        found |= schemas(read(source, folder))
    FILE.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), 9, mtime=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
