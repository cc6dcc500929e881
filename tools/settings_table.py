"""The table of docs/reference/settings.md: each setting of `neuronserve serve`, with its default and its help text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic.fields import FieldInfo

from neuronserve.server.settings.help_groups import GROUPS
from neuronserve.testkit.settings.faults import FaultyServeSettings


def table() -> str:
    """Return one table for each heading of `serve --help-all`."""
    fields = FaultyServeSettings.model_fields
    return "\n".join(line for heading, names in GROUPS.items() for line in _section(heading, names, fields))


def _section(heading: str, names: Sequence[str], fields: Mapping[str, FieldInfo]) -> Iterator[str]:
    yield f"### {heading[0].upper()}{heading[1:]}\n\n| flag | default | meaning |\n|---|---|---|"
    yield from (_row(name, fields[name]) for name in names)
    yield ""


def _row(name: str, field: FieldInfo) -> str:
    meaning = (field.description or "").replace("|", "\\|")
    return f"| `--{name.replace('_', '-')}` | {_default(field)} | {meaning} |"


def _default(field: FieldInfo) -> str:
    """Return the default as a user would write it; a dash if there is none, or if the meaning states it."""
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    if value is None or value == () or "(default: " in (field.description or ""):
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value}`"
