"""The table of docs/reference/metrics.md, made from the server's metric families.

The page says which families have the label `model_name`.
"""

from __future__ import annotations

from collections.abc import Iterator

from neuronserve.server.api.telemetry.families import ALIASES, FAMILIES, MetricFamily


def table() -> str:
    """Return the families by prefix, in the order of the code, and the older names."""
    parts = [_section(prefix) for prefix in ("vllm:", "neuronserve:", "http_")]
    aliases = [f"| `{old}{_suffix(family)}` | `{family.exposed}` |" for old, family in ALIASES.items()]
    return "\n".join([*parts, "### Older names\n\n| older name | the same as |\n|---|---|", *aliases, ""])


def _section(prefix: str) -> str:
    head = f"### `{prefix}`\n\n| name | type | labels | unit | meaning |\n|---|---|---|---|---|\n"
    return head + "".join(_rows(prefix))


def _rows(prefix: str) -> Iterator[str]:
    for family in FAMILIES:
        if family.name.startswith(prefix):
            labels = ", ".join(f"`{label}`" for label in family.labels if label != "model_name")
            yield f"| `{family.exposed}` | {family.kind} | {labels} | {family.unit} | {family.meaning} |\n"


def _suffix(family: MetricFamily) -> str:
    return family.exposed.removeprefix(family.name)
