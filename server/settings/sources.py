"""Where settings come from: argv over `NEURONSERVE_*` environment over the YAML file of --config.

The only file that reads the environment (argparse reads argv for `server/cli.py`). Knows no setting by itself.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode

from server.config import RuntimeCores
from server.errors import SettingsError

ENV_PREFIX = "NEURONSERVE_"

Settings = TypeVar("Settings", bound=BaseSettings)
Texts = Annotated[tuple[str, ...], NoDecode]  # a flag that may be repeated


def split_text(value: Any) -> Any:
    """The environment and YAML may give several texts as one with commas."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def add_arguments(parser: argparse.ArgumentParser, settings: type[BaseSettings]) -> None:
    """Give `parser` one argument for each field; those not given stay out of the namespace."""
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="YAML file with these settings")
    for name, field in settings.model_fields.items():
        if name == "model":
            parser.add_argument(name, **_options(name, field))
        else:
            parser.add_argument(*_short(field), _flag(name, field), dest=name, **_options(name, field))


def load_settings(settings: type[Settings], arguments: Mapping[str, Any]) -> Settings:
    """Settle parsed argv, environment and YAML file. Raises SettingsError, which names the source, value and limit."""
    argv = {key: value for key, value in arguments.items() if key in settings.model_fields}
    environment = _environment(settings)
    config = arguments.get("config") or os.environ.get(f"{ENV_PREFIX}CONFIG")
    file = _yaml(config) if config else {}
    try:
        return settings(**{**file, **environment, **argv})
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # two settings that contradict each other
            raise SettingsError(str(first["msg"]).removeprefix("Value error, ")) from error
        name = str(first["loc"][0])
        if name in argv:
            source = "MODEL" if name == "model" else _flag(name, settings.model_fields[name])
        else:
            source = ENV_PREFIX + name.upper() if name in environment else f"{config}: {name}"
        raise SettingsError(f"{source}: {_complaint(first)}") from error


def _flag(name: str, field: FieldInfo) -> str:
    """The field's name with dashes, where the field does not name another flag."""
    extra = field.json_schema_extra
    other = extra.get("flag") if isinstance(extra, dict) else None
    return str(other or "--" + name.replace("_", "-"))


def _short(field: FieldInfo) -> tuple[str, ...]:
    """The one-letter flag beside the long one, where the field names one."""
    extra = field.json_schema_extra
    short = extra.get("short") if isinstance(extra, dict) else None
    return (str(short),) if short else ()


def _options(name: str, field: FieldInfo) -> dict[str, Any]:
    """How argparse takes a field; the values stay text, so that there is one place that checks them."""
    options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": _help(name, field)}
    if name == "model":
        return options | {"nargs": "?", "metavar": "MODEL"}
    if field.annotation is bool:
        return options | {"action": argparse.BooleanOptionalAction if name.startswith("enable") else "store_true"}
    if field.annotation == tuple[str, ...]:
        return options | {"action": "append", "metavar": "TEXT"}
    choices = get_args(field.annotation)
    is_choice = bool(choices) and all(isinstance(choice, str) for choice in choices)
    return options | {"metavar": "{" + ",".join(choices) + "}" if is_choice else _metavar(field)}


def _metavar(field: FieldInfo) -> str:
    kinds = {field.annotation, *get_args(field.annotation)}
    return "N" if int in kinds else "X" if float in kinds else "TEXT"


def _help(name: str, field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%")
    shows_default = field.default not in (None, (), False, "") and name != "model"
    if not shows_default:
        return text
    default = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
    return f"{text} (default: {default})"


def _environment(settings: type[BaseSettings]) -> dict[str, Any]:
    """The fields set in the environment. Kubernetes sets NEURONSERVE_PORT=tcp://... beside a Service of our name."""
    values = EnvSettingsSource(settings)()
    if str(values.get("port", "")).startswith("tcp://"):
        del values["port"]
    return values


def _yaml(path: str) -> dict[str, Any]:
    """The settings in a YAML file; keys may be written with dashes, as the flags are."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--config: cannot read {path!r}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config: {path} is not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict | None):
        raise SettingsError(f"--config: {path} must hold a mapping of settings, not {type(content).__name__}")
    return {str(key).replace("-", "_"): value for key, value in (content or {}).items()}


def _complaint(error: Any) -> str:
    """What is wrong, the value that was given and the limit, in one line."""
    if error["type"] == "extra_forbidden":
        return "there is no such setting"
    message = str(error["msg"])
    expected = message.replace("Input should be", "must be").replace("Value error, ", "").split(", unable to")[0]
    return f"{expected}, not {str(error['input'])[:80]!r}"


def traces_protocol(asked: str | None) -> str:
    """How spans are sent: as asked, as OpenTelemetry's own variables say, else grpc. Raises SettingsError."""
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        value = asked or os.environ.get(name)
        if value in {"grpc", "http/protobuf"}:
            return value
        if value:
            raise SettingsError(f"{name}: must be 'grpc' or 'http/protobuf', not {value[:80]!r}")
    return "grpc"


def runtime_cores() -> RuntimeCores:
    """The Neuron runtime's variables; an empty one counts as not set."""
    names = ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES")
    visible, count = (os.environ.get(name) or None for name in names)
    return RuntimeCores(visible, count)


def cache_home() -> Path:
    """Where this user's caches are (XDG base directory specification)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
