"""Writes the table of docs/metrics.md from the server's own families: `python -m tools.metrics_table`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from server.api.telemetry.families import ALIASES, FAMILIES
from server.api.telemetry.instruments import MetricFamily

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
BEGIN, END = "<!-- families: begin -->\n", "<!-- families: end -->\n"


def table() -> str:
    """The families by prefix, in the order of the code, and the older names."""
    parts = [_section(prefix) for prefix in ("vllm:", "neuronserve:", "http_")]
    aliases = [f"| `{old}{_suffix(family)}` | `{family.exposed}` |" for old, family in ALIASES.items()]
    return "\n".join([*parts, "### Older names\n\n| older name | the same as |\n|---|---|", *aliases, ""])


def write(page: str) -> str:
    """`page` with its table made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _section(prefix: str) -> str:
    head = f"### `{prefix}`\n\n| name | type | labels | unit | meaning |\n|---|---|---|---|---|\n"
    return head + "".join(_rows(prefix))


def _rows(prefix: str) -> Iterator[str]:
    for family in FAMILIES:
        if family.name.startswith(prefix):
            labels = ", ".join(f"`{label}`" for label in family.labels)
            yield f"| `{family.exposed}` | {family.kind} | {labels} | {family.unit} | {family.meaning} |\n"


def _suffix(family: MetricFamily) -> str:
    return family.exposed.removeprefix(family.name)


if __name__ == "__main__":
    PAGE.write_text(write(PAGE.read_text()))
