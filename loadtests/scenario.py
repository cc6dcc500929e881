"""Reader of scenario files; flags override their values. Unknown keys are refused by name."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from ..server.errors import SettingsError
from ..workload.slo import Slo
from .errors import SpecError
from .specs import Scenario, Spec

BUILT_IN = Path(__file__).resolve().parent / "scenarios"
Tree = Mapping[str, Mapping[str, Any]]

SECTIONS: dict[str, type[Spec] | type[Slo]] = {
    field.name: field.type
    for field in msgspec.structs.fields(Scenario)
    if isinstance(field.type, type) and issubclass(field.type, Spec | Slo)
}


def key_names(section: str) -> list[str]:
    """Return the keys of a section."""
    spec = SECTIONS[section]
    if issubclass(spec, Slo):
        return [field.name for field in dataclasses.fields(spec)]
    return [field.name for field in msgspec.structs.fields(spec)]


def built_in_names() -> list[str]:
    """Return the names of the built-in scenarios."""
    return sorted(path.stem for path in BUILT_IN.glob("*.toml"))


def load_scenario(name: str | None, flags: Tree) -> Scenario:
    """Return the scenario `name` (built in, or a path), with flags over it by section. Raises SpecError."""
    tree, source = (_read(_path(name)), name) if name is not None else ({}, "flags")
    _check_keys(tree, source)
    merged = {**tree, **{section: {**tree.get(section, {}), **values} for section, values in flags.items()}}
    try:
        return msgspec.convert(merged, Scenario)
    except msgspec.ValidationError as error:
        raise SpecError(f"{source}: {_complaint(error)}") from error
    except SettingsError as error:  # of limits, which are the server's own record
        raise SpecError(f"{source}: slo: {error}") from error


def _path(name: str) -> Path:
    built_in = BUILT_IN / f"{name}.toml"
    if built_in.is_file():
        return built_in
    if not Path(name).is_file():
        raise SpecError(f"there is no scenario {name!r}: built in are {', '.join(built_in_names())}; or give a file")
    return Path(name)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SpecError(f"scenario {str(path)!r} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"scenario {str(path)!r} is not TOML: {error}") from error


def _check_keys(tree: Mapping[str, Any], source: str) -> None:
    _check_known("", tree, [field.name for field in msgspec.structs.fields(Scenario)], source)
    for section in SECTIONS:
        values = tree.get(section, {})
        if not isinstance(values, dict):
            raise SpecError(f"{source}: {section} is {values!r}: it must be a table, [{section}]")
        _check_known(f"{section}.", values, key_names(section), source)


def _check_known(prefix: str, values: Mapping[str, Any], known: list[str], source: str) -> None:
    for key in values:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known are {', '.join(known)}"
            raise SpecError(f"{source}: unknown key {prefix}{key}; {hint}")


def _complaint(error: msgspec.ValidationError) -> str:
    """Return msgspec's message with the path first: "arrival.request_rate: Expected `float`, got `str`"."""
    message, _, path = str(error).partition(" - at `$")
    where = path.rstrip("`").lstrip(".")
    return f"{where}: {message}" if where and where not in SECTIONS else message
