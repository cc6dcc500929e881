"""Command line flags, one for each key of a scenario, and their values as a tree of sections."""

from __future__ import annotations

import argparse
import math
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from ..workload.slo import Slo
from .errors import SpecError
from .scenario import SECTIONS, key_names

_LIMITS = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2el_ms"}


def add_scenario_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each key, in a group for each section. Flags that are not given stay out of the namespace."""
    for section, spec in SECTIONS.items():
        group = parser.add_argument_group(section, (spec.__doc__ or "").partition(".")[0])
        if issubclass(spec, Slo):
            _add_slo_flags(group)
            continue
        hints = get_type_hints(spec, include_extras=True)
        for field in msgspec.structs.fields(spec):
            _add_flag(group, field, hints[field.name])
    parser.add_argument("--host", default=argparse.SUPPRESS, help="with --port: instead of --base-url")
    parser.add_argument("--port", type=int, default=argparse.SUPPRESS, help="with --host: instead of --base-url")


def scenario_tree(arguments: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the given flags by section. Raises SpecError."""
    tree: dict[str, dict[str, Any]] = {}
    for section in SECTIONS:
        given = {name: arguments[name] for name in key_names(section) if name in arguments}
        if given:
            tree[section] = given
    if "goodput" in arguments:
        tree.setdefault("slo", {}).update(parse_goodput(arguments["goodput"]))
    if "extra_body" in arguments:
        tree["endpoint"]["extra_body"] = _json_object("--extra-body", arguments["extra_body"])
    if "metadata" in arguments:
        tree["run"]["metadata"] = dict(_pair(text) for text in arguments["metadata"])
    if "host" in arguments or "port" in arguments:
        if "base_url" in arguments:
            raise SpecError("--base-url and --host/--port exclude each other")
        host, port = arguments.get("host", "127.0.0.1"), arguments.get("port", 8000)
        tree.setdefault("endpoint", {})["base_url"] = (
            f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        )
    return tree


def parse_goodput(texts: list[str]) -> dict[str, float]:
    """Return `["ttft:2000", "tpot:200"]` as keys of the slo section. Raises SpecError."""
    limits = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            limits[_LIMITS[name]] = float(value)
        except (KeyError, ValueError) as error:
            known = ", ".join(f"{key}:MS" for key in _LIMITS)
            raise SpecError(f"--goodput: {text!r} is no limit; they look like {known}") from error
    return limits


def _add_slo_flags(group: Any) -> None:
    """Add the flags of limits, with the names of `vllm bench serve`."""
    group.add_argument(
        "--goodput",
        nargs="+",
        metavar="METRIC:MS",
        default=argparse.SUPPRESS,
        help="limits that a good request meets, in milliseconds: ttft:2000 tpot:200 e2el:10000",
    )
    group.add_argument(
        "--attainment",
        type=float,
        metavar="X",
        default=argparse.SUPPRESS,
        help=_help("share of requests that must be good for a rate to hold", Slo().attainment),
    )


def _add_flag(group: Any, field: msgspec.structs.FieldInfo, hint: Any) -> None:
    flag = "--" + field.name.replace("_", "-")
    kind, text = _kind_and_help(hint)
    options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": _help(text, field.default)}
    if field.name == "metadata":
        options |= {"action": "append", "metavar": "KEY=VALUE"}
    elif field.name == "extra_body":
        options |= {"metavar": "JSON"}
    elif kind is bool:
        options |= {"action": argparse.BooleanOptionalAction}
    elif get_origin(kind) is Literal:
        options |= {"choices": get_args(kind)}
    else:
        options |= {"type": kind, "metavar": {int: "N", float: "X"}.get(kind, "TEXT")}
    group.add_argument(flag, **options)


def _kind_and_help(hint: Any) -> tuple[Any, str]:
    """Return the type to parse to, without `| None`, and the key's description."""
    text = ""
    if get_origin(hint) is Annotated:
        hint, meta = get_args(hint)[:2]
        text = meta.description or ""
    if get_origin(hint) is Union or type(hint).__name__ == "UnionType":
        hint = next(arm for arm in get_args(hint) if arm is not type(None))
    return hint, text


def _help(text: str, default: Any) -> str:
    text = text.replace("%", "%%")
    shows = default is not None and not isinstance(default, bool) and default not in ({}, math.inf)
    return f"{text} (default: {default})" if shows and default is not msgspec.NODEFAULT else text


def _json_object(flag: str, text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.ValidationError:
        raise SpecError(f"{flag}: {text[:80]!r} must be a JSON object") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{flag}: {text[:80]!r} is not JSON: {error}") from error


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise SpecError(f"--metadata: {text!r} must look like KEY=VALUE")
    return key, value
