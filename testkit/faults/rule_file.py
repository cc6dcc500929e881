"""Rules of faults as users write them: a YAML or JSON file, or a request header."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ...server.errors import InvalidRequest, SettingsError
from ...server.typed_json import JsonError, complaint, convert, shown
from .rules import KINDS, FaultConfig, Latency, Match, Rule

FAULT_HEADER = "X-Inject-Fault"
_NESTED = {"match": Match, "first_token": Latency, "token": Latency}


def read_rules(path: Path) -> FaultConfig:
    """Return the rules and the seed of a file. Raises SettingsError with the key, its value and the nearest name."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        _check_names(content, ("seed", "rules"), "")
        rules = convert(content.get("rules", []), list[dict[str, Any]], "rules.")
        seed = convert(content.get("seed", 0), int, "seed.")
        return FaultConfig(tuple(_rule(rule, f"rules[{place}].") for place, rule in enumerate(rules)), seed)
    except OSError as error:
        raise SettingsError(f"--inject-faults: cannot read {str(path)!r}: {error.strerror}") from error
    except JsonError as error:
        raise SettingsError(f"--inject-faults: {path}: {error}") from error
    except (yaml.YAMLError, ValueError) as error:  # no UTF-8, or an invalid date
        raise SettingsError(f"--inject-faults: {path} is not YAML: {str(error).splitlines()[0]}") from error


def header_rule(text: str) -> Rule:
    """Return the rule in a header such as `cut; after_tokens=3`. Raises InvalidRequest."""
    kind, *fields = (part.strip() for part in text.split(";"))
    try:
        pairs = [field.partition("=") for field in fields if field]
        return _rule({"fault": kind} | {name.strip(): _scalar(value.strip()) for name, _, value in pairs}, "")
    except JsonError as error:
        raise InvalidRequest(f"{FAULT_HEADER}: {error}", FAULT_HEADER) from error


def _scalar(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _rule(content: dict[str, Any], path: str) -> Rule:
    """Return a checked rule. Raises JsonError."""
    kind = content.get("fault")
    if kind is None:
        raise JsonError(f"{path}fault is missing: one of {', '.join(KINDS)}")
    if kind not in KINDS:
        raise JsonError(complaint(f"{path}fault", kind, f"there is no such fault{_hint(str(kind), KINDS)}"))
    fields = {name: value for name, value in content.items() if name != "fault"}
    _check_names(fields, KINDS[kind].__struct_fields__, path)
    for name, record in _NESTED.items():
        if isinstance(fields.get(name), dict):
            _check_names(fields[name], record.__struct_fields__, f"{path}{name}.")
    return convert(fields, KINDS[kind], path)


def _check_names(content: Any, known: Collection[str], path: str) -> None:
    if not isinstance(content, dict):
        raise JsonError(f"{path.removesuffix('.') or 'the file'} must be a mapping, not {shown(content)}")
    for name in content:
        if name not in known:
            raise JsonError(f"{path}{name}: there is no such key{_hint(str(name), known)}")


def _hint(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f" (did you mean {near[0]}?)" if near else f": known are {', '.join(known)}"
