"""Parts of the Helm chart that follow from the code: `python -m tools.helm_chart` writes them, --check only compares.

values.schema.json gets the catalogue's instances, the tensor-parallel degrees that each allows, the buckets that an
objective may be, and the required keys. files/devices.json gets the cores of each instance, files/alerts.json the
alerts of the PrometheusRule. README.md gets the table of values, made of the comments `# --` of values.yaml.
deploy/grafana/dashboard.json is the chart's dashboard with its default objectives, for Grafana's own import.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import yaml

from neuronserve.planner.emit.alerts import ALERTS
from neuronserve.server.api.telemetry.families import BUCKETS
from neuronserve.server.device.catalog import INSTANCES

CHART = Path(__file__).resolve().parent.parent / "helm"
DASHBOARD = CHART.parent / "deploy" / "grafana" / "dashboard.json"
BEGIN, END = "<!-- values: written by tools/helm_chart.py -->", "<!-- end of values -->"


def with_facts(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the instances, each one's `tensorParallelSize` values, and the histogram buckets."""
    degrees = sorted({tp for instance in INSTANCES for tp in instance.allowed_tp})
    same: dict[tuple[int, ...], list[str]] = {}
    for instance in INSTANCES:
        same.setdefault(instance.allowed_tp, []).append(instance.name)
    rules = [
        {
            "if": {"properties": {"device": {"enum": names}}, "required": ["device"]},
            "then": {"properties": {"tensorParallelSize": {"enum": list(allowed)}}},
        }
        for allowed, names in same.items()
    ]
    devices = {"device": {"enum": [i.name for i in INSTANCES]}, "tensorParallelSize": {"enum": degrees}}
    slo = schema["properties"]["slo"]
    bounds = {
        "ttftSeconds": {"enum": list(BUCKETS["first_token"])},
        "tpotSeconds": {"enum": list(BUCKETS["between_tokens"])},
    }
    objectives = {"slo": slo | {"properties": slo["properties"] | bounds}}
    return schema | {"properties": schema["properties"] | devices | objectives, "allOf": rules}


def with_required(schema: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Require every key that has a default: `null`, or the values of an older chart, would remove it."""
    properties = schema["properties"] | {
        key: with_required(schema["properties"][key], value)
        for key, value in values.items()
        if isinstance(value, dict) and value and "properties" in schema["properties"][key] and key != "resources"
    }
    return schema | {"properties": properties, "required": [key for key, value in values.items() if value is not None]}


def devices() -> dict[str, dict[str, int]]:
    """Return the facts of each instance for the templates: its NeuronCores, and those of one device."""
    return {each.name: {"cores": each.num_cores, "coresPerDevice": each.chip.cores_per_chip} for each in INSTANCES}


def described(text: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, description) of each key below a comment that begins with `# --`."""
    above: list[tuple[int, str]] = []  # indents and names of the enclosing mappings
    comment: list[str] = []
    for line in text.splitlines():
        words = line.strip()
        if words.startswith("#"):
            comment = [words.removeprefix("# --")] if words.startswith("# --") else [*comment, words.removeprefix("#")]
        elif found := re.match(r"( *)([A-Za-z]+):", line):
            indent = len(found[1])
            above = [*(entry for entry in above if entry[0] < indent), (indent, found[2])]
            if comment:
                yield ".".join(name for _, name in above), " ".join(part.strip() for part in comment)
            comment = []
        else:
            comment = []


def values_table(text: str) -> str:
    """Return a Markdown table of key, default and description."""
    values = yaml.safe_load(text)
    rows = ["| key | default | what it is |", "|---|---|---|"]
    for key, what in described(text):
        default: Any = values
        for part in key.split("."):
            default = default[part]
        rows.append(f"| `{key}` | `{json.dumps(default)}` | {what.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def dashboard(text: str, values: dict[str, Any]) -> str:
    """Return the dashboard as the chart renders it with `values`."""
    slo, price = values["slo"], values["price"]["hourlyUsd"]
    filled = {"TTFT_SLO": float(slo["ttftSeconds"]), "TPOT_SLO": float(slo["tpotSeconds"]), "PRICE": price or 0}
    for name, value in filled.items():
        text = text.replace(f"__{name}__", str(value))
    return text


def generated() -> dict[Path, str]:
    """Return the contents that each file should have."""
    schema, readme = CHART / "values.schema.json", CHART / "README.md"
    head, _, rest = readme.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    text = (CHART / "values.yaml").read_text()
    values, table = yaml.safe_load(text), values_table(text)
    facts = with_facts(msgspec.json.decode(schema.read_bytes()))
    return {
        schema: json.dumps(with_required(facts, values), indent=2) + "\n",
        DASHBOARD: dashboard((CHART / "files" / "dashboard.json").read_text(), values),
        CHART / "files" / "alerts.json": json.dumps([asdict(each) for each in ALERTS], indent=2) + "\n",
        CHART / "files" / "devices.json": json.dumps(devices(), indent=2) + "\n",
        readme: f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}",
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Return exit code 1 if --check finds a stale file."""
    parser = argparse.ArgumentParser(prog="python -m tools.helm_chart", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args(argv).check
    stale = {path: text for path, text in generated().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        print(f"{path.name} is stale" if check else f"{path.name} written", file=sys.stderr)
        if not check:
            path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
