"""Rules of faults and answers as users write them: a YAML, JSON or Python file, a request header, or a request."""

from __future__ import annotations

import contextlib
import runpy
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from ...server.api.http.scripted import Scripted
from ...server.errors import InvalidRequest, SettingsError
from ...server.typed_json import JsonError, complaint, convert, shown
from .rules import KINDS, Answer, FaultConfig, Latency, Match, Rule, Script

FAULT_HEADER = "X-Inject-Fault"
_NESTED = {"match": Match, "first_token": Latency, "token": Latency}


def read_rules(path: Path) -> FaultConfig:
    """Return the rules and the seed of a file. Raises SettingsError with the key, its value and the nearest name."""
    return FaultConfig(*_read(path, "--inject-faults", has_answers=False)[:2])


def read_script(path: Path) -> FaultConfig:
    """Return the answers, faults and seed of a YAML file, or the function `answer` of a Python file.

    Raises SettingsError.
    """
    if path.suffix == ".py":
        return FaultConfig(script=_function(path))
    rules, seed = _read(path, "--script", has_answers=True)
    return with_answers(rules, seed)


def with_answers(rules: Sequence[Rule], seed: int = 0) -> FaultConfig:
    """Return rules of both kinds as a configuration."""
    answers = tuple(rule for rule in rules if isinstance(rule, Answer))
    return FaultConfig(tuple(rule for rule in rules if not isinstance(rule, Answer)), seed, answers=answers)


def script_rules(content: Any) -> list[Rule]:
    """Return the rules of a script that came over HTTP. Raises JsonError."""
    _check_names(content, ("rules",), "")
    rules = convert(content.get("rules", []), list[dict[str, Any]], "rules.")
    return [_rule(rule, f"rules[{place}].", has_answers=True) for place, rule in enumerate(rules)]


def scripted(given: Any, path: str = "answer") -> Scripted:
    """Return an answer as a rule has it: a text, or a mapping with `text` and `calls`. Raises JsonError."""
    found = Scripted(given) if isinstance(given, str) else convert(given, Scripted, f"{path}.")
    # YAML reads the two halves of a character in JSON's escapes as two characters.
    text = found.text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return msgspec.structs.replace(found, text=text)


def _read(path: Path, flag: str, has_answers: bool) -> tuple[tuple[Rule, ...], int]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        _check_names(content, ("seed", "rules"), "")
        rules = convert(content.get("rules", []), list[dict[str, Any]], "rules.")
        seed = convert(content.get("seed", 0), int, "seed.")
        return tuple(_rule(rule, f"rules[{place}].", has_answers) for place, rule in enumerate(rules)), seed
    except OSError as error:
        raise SettingsError(f"{flag}: cannot read {str(path)!r}: {error.strerror}") from error
    except JsonError as error:
        raise SettingsError(f"{flag}: {path}: {error}") from error
    except (yaml.YAMLError, ValueError) as error:  # no UTF-8, or an invalid date
        raise SettingsError(f"{flag}: {path} is not YAML: {str(error).splitlines()[0]}") from error


def _function(path: Path) -> Script:
    """Return the function `answer` of a Python file. Raises SettingsError."""
    try:
        found = runpy.run_path(str(path)).get("answer")
    except Exception as error:
        raise SettingsError(f"--script: {path}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise SettingsError(f"--script: {path} has no function answer(request)")
    function: Script = found
    return function


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


def _rule(content: dict[str, Any], path: str, has_answers: bool = False) -> Rule:
    """Return a checked rule. Raises JsonError."""
    if has_answers and "answer" in content:
        return _answer(content, path)
    kind = content.get("fault")
    if kind is None:
        raise JsonError(f"{path}fault is missing: {'answer, or ' if has_answers else ''}one of {', '.join(KINDS)}")
    if kind not in KINDS:
        raise JsonError(complaint(f"{path}fault", kind, f"there is no such fault{_hint(str(kind), KINDS)}"))
    fields = {name: value for name, value in content.items() if name != "fault"}
    _check_names(fields, KINDS[kind].__struct_fields__, path)
    for name, record in _NESTED.items():
        if isinstance(fields.get(name), dict):
            _check_names(fields[name], record.__struct_fields__, f"{path}{name}.")
    return convert(fields, KINDS[kind], path)


def _answer(content: dict[str, Any], path: str) -> Answer:
    fields = {name: value for name, value in content.items() if name != "answer"}
    _check_names(fields, [name for name in Answer.__struct_fields__ if name != "output"], path)
    if isinstance(fields.get("match"), dict):
        _check_names(fields["match"], Match.__struct_fields__, f"{path}match.")
    rule = convert({**fields, "output": {}}, Answer, path)
    return msgspec.structs.replace(rule, output=scripted(content["answer"], f"{path}answer"))


def _check_names(content: Any, known: Collection[str], path: str) -> None:
    if not isinstance(content, dict):
        raise JsonError(f"{path.removesuffix('.') or 'the file'} must be a mapping, not {shown(content)}")
    for name in content:
        if name not in known:
            raise JsonError(f"{path}{name}: there is no such key{_hint(str(name), known)}")


def _hint(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f" (did you mean {near[0]}?)" if near else f": known are {', '.join(known)}"
