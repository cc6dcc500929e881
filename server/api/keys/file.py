"""A file of API keys, in YAML or JSON, as `Key` records. No message repeats a text that may be a key."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from ...errors import SettingsError
from .key import Key, KeyLimits, KeyScheduling, Scope, digest_of

if TYPE_CHECKING:
    import yaml

MAX_KEYS = 1000
MAX_BYTES = 2**20
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.@/-]{0,63}$"
NO_KEY = "none"  # the name of requests without a key
OTHERS = "others"  # the label of all names beyond the first MAX_NAMES
_Limit = Annotated[int, Meta(ge=1, le=10**12)] | None
_Milliseconds = Annotated[float, Meta(gt=0, le=86_400_000)] | None
_Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class _Limits(msgspec.Struct, forbid_unknown_fields=True):
    requests_per_minute: _Limit = None
    tokens_per_minute: _Limit = None
    max_concurrent: _Limit = None


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=NAME)]
    key: Annotated[str, Meta(pattern=r"^\S+$")] | None = None
    sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None  # of the key, in place of `key`
    scopes: Annotated[list[Scope], Meta(min_length=1)] = msgspec.field(default_factory=lambda: ["inference"])
    limits: _Limits = msgspec.field(default_factory=_Limits)
    priority: _Int32 | None = None
    weight: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    ttft_slo_ms: _Milliseconds = None
    tpot_slo_ms: _Milliseconds = None


def read_keys(path: Path) -> tuple[Key, ...]:
    """Return the keys of a file, at least one. Raises SettingsError, which names the line."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not UTF-8") from error
    if len(data) > MAX_BYTES:
        raise SettingsError(f"{path}: has more than {MAX_BYTES} bytes")
    try:
        rows = _rows(text)
        keys = tuple(_key(line, row) for line, row in rows)
        require_distinct((f"line {line}", key) for (line, _), key in zip(rows, keys, strict=True))
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error
    return keys


def require_distinct(keys: Iterable[tuple[str, Key]]) -> None:
    """Raise SettingsError when two of these keys, each with its place, have one name or are the same key."""
    seen: dict[str | bytes, str] = {}
    for source, key in keys:
        for value, what in ((key.name, "name"), (key.digest, "key")):
            if value in seen:
                raise SettingsError(f"{source}: {key.name!r} has the {what} of {seen[value]}")
            seen[value] = source
    if len(seen) > 2 * MAX_KEYS:
        raise SettingsError(f"there are {len(seen) // 2} keys; {MAX_KEYS} are the most")


def _rows(text: str) -> list[tuple[int, object]]:
    """Return the entries of `keys`, each with its line."""
    import yaml  # not needed at a start without keys

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        entries = dict(_entries(node)).get("keys") if isinstance(node, yaml.MappingNode) else None
        if not isinstance(entries, yaml.SequenceNode) or not entries.value:
            raise SettingsError("must have a list `keys` with a key in it: without one everybody would be let in")
        return [(each.start_mark.line + 1, loader.construct_object(each, deep=True)) for each in entries.value]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise SettingsError(f"{where}is not YAML") from None  # YAML's own message repeats the line
    finally:
        loader.dispose()


def _entries(node: yaml.MappingNode) -> Iterable[tuple[str, yaml.Node]]:
    return ((name.value, value) for name, value in node.value if name.id == "scalar")


def _key(line: int, content: object) -> Key:
    try:
        row = msgspec.convert(content, _Row)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$.")
        field = f"{place.removesuffix('`')}: " if place else ""
        raise SettingsError(f"line {line}: {field}{problem[0].lower()}{problem[1:]}") from None
    if row.name in {NO_KEY, OTHERS}:
        raise SettingsError(
            f"line {line}: name: {row.name!r} is reserved for requests without a key, or for several keys"
        )
    if (row.key is None) == (row.sha256 is None):
        raise SettingsError(f"line {line}: {row.name!r} must have either `key` or `sha256`")
    digest = bytes.fromhex(row.sha256) if row.sha256 is not None else digest_of(row.key or "")
    limits = KeyLimits(row.limits.requests_per_minute, row.limits.tokens_per_minute, row.limits.max_concurrent)
    scheduling = KeyScheduling(row.weight, row.ttft_slo_ms, row.tpot_slo_ms)
    return Key(row.name, digest, frozenset(row.scopes), limits, row.priority, scheduling)
