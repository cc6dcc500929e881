"""The table of docs/reference/settings.md: each setting of `neuronserve serve`, with its default and its help text."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from pydantic.fields import FieldInfo

from neuronserve.testkit.settings.faults import FaultyServeSettings

# Headings in the order of the page; a class that is not here comes last, under its own name.
_HEADINGS = {
    "ServeSettings": "Server",
    "ModelSettings": "Model",
    "EngineSettings": "Engine",
    "TimeSettings": "Modelled time",
    "CatalogSettings": "Catalogue and prices",
    "AdapterSettings": "Adapters",
    "PoolingSettings": "Embeddings",
    "KeySettings": "API keys",
    "TlsSettings": "HTTPS",
    "FaultSettings": "Faults",
    "Settings": "All commands",
}


def table() -> str:
    """One table for each class of settings."""
    groups: dict[str, list[str]] = {heading: [] for heading in _HEADINGS.values()}
    for name, field in FaultyServeSettings.model_fields.items():
        groups.setdefault(_group(name), []).append(_row(name, field))
    return "\n".join(line for group, rows in groups.items() if rows for line in _section(group, rows))


def _section(group: str, rows: list[str]) -> Iterator[str]:
    yield f"### {group}\n\n| flag | default | meaning |\n|---|---|---|"
    yield from rows
    yield ""


def _group(name: str) -> str:
    """Heading of the class that defines the setting."""
    owner = next(kind.__name__ for kind in FaultyServeSettings.__mro__[::-1] if name in inspect.get_annotations(kind))
    return _HEADINGS.get(owner, owner.removesuffix("Settings"))


def _row(name: str, field: FieldInfo) -> str:
    meaning = (field.description or "").replace("|", "\\|")
    return f"| `--{name.replace('_', '-')}` | {_default(field)} | {meaning} |"


def _default(field: FieldInfo) -> str:
    """The default as a user would write it; a dash where there is none, or where the meaning states it."""
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    if value is None or value == ():
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value}`"
