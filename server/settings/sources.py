"""Sources of settings, by precedence: argv, `NEURONSERVE_*` variables, the YAML file of --config.

The only file that reads the environment. It knows no setting by name.
"""

import os
import re
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import CliSettingsSource, EnvSettingsSource

from ..config import RuntimeCores
from ..errors import SettingsError
from .base import ENV_PREFIX, Settings
from .help_groups import ADVANCED, ALL_FLAG, HEADINGS

Kind = TypeVar("Kind", bound=Settings)
NEURON_PREFIXES = ("NEURON_", "VLLM_NEURON_")
NEAR = 0.75  # difflib's ratio of names that are taken for one another
REPLACED = {"api_workers": "replicas"}
METAVARS = {int: "N", float: "X", str: "TEXT", Path: "FILE"}


def load_settings(kind: type[Kind], argv: Sequence[str], parser: ArgumentParser | None = None) -> Kind:
    """Merge argv, environment and YAML file. Raises SettingsError, which names the source, value and limit.

    `parser` prints the help and refuses flags in its own way.
    """
    given = _command_line(kind, argv, parser or ArgumentParser(allow_abbrev=False))
    environment = _environment(kind)
    config = given.get("config") or environment.get("config")
    file = config_file(config) if config else {}
    values = {**file, **environment, **given}
    implied = {name: each for name, each in kind.implied(values, neuron_variables()).items() if name in names(kind)}

    def source(name: str) -> str:
        if name in given:
            return "MODEL" if name == "model" else _flag(name)
        if name in environment or name in file:
            return ENV_PREFIX + name.upper() if name in environment else f"{config}: {name}"
        return implied[name].source if name in implied else _flag(name)

    try:
        settings = kind(**{name: each.value for name, each in implied.items()} | values)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # two settings that contradict each other
            raise SettingsError(str(first["msg"]).removeprefix("Value error, ")) from error
        name = str(first["loc"][0])
        raise SettingsError(f"{source(name)}: {_complaint(kind, name, first)}") from error
    for name, each in implied.items():
        if name in values and not each.is_default and _plain(getattr(settings, name)) != _plain(each.value):
            raise SettingsError(f"{source(name)} is {getattr(settings, name)}: {each.source} is {each.value}")
    return settings


def names(kind: type[Settings]) -> dict[str, FieldInfo]:
    """Return the settings by their public names, with underscores."""
    return {str(field.validation_alias or name): field for name, field in kind.model_fields.items()}


def misspelt_variables(kind: type[Settings]) -> dict[str, str]:
    """Return environment variables that resemble a setting, as {name: setting} in lower case.

    Other variables with our prefix are ignored: Kubernetes sets some beside a Service of our name.
    """
    known = names(kind)
    given = [name.removeprefix(ENV_PREFIX).lower() for name in os.environ if name.startswith(ENV_PREFIX)]
    near = {name: _replaced(name) or get_close_matches(name, known, 1, NEAR) for name in given if name not in known}
    return {name: found[0] for name, found in near.items() if found}


def _plain(value: Any) -> Any:
    """Return lists in one order, for comparison."""
    return sorted(value) if isinstance(value, tuple) else value


def _command_line(kind: type[Settings], argv: Sequence[str], parser: ArgumentParser) -> dict[str, Any]:
    words = ["--help" if word == ALL_FLAG else word for word in argv]
    return add_flags(kind, parser, shows_advanced=ALL_FLAG in argv)(args=words)()


def add_flags(kind: type[Settings], parser: ArgumentParser, shows_advanced: bool = True) -> CliSettingsSource[Any]:
    """Give `parser` a flag for each setting. Returns the source that parses argv with it."""
    fields = names(kind)
    added: dict[str, tuple[list[str], dict[str, Any]]] = {}
    source: CliSettingsSource[Any] = CliSettingsSource(
        kind,
        root_parser=parser,
        parse_args_method=partial(_parse, fields),
        add_argument_method=partial(_add_argument, fields, added),
    )
    _add_under_headings(parser, added, HEADINGS if kind.has_headings else {}, shows_advanced)
    return source


def _add_under_headings(
    parser: ArgumentParser,
    added: Mapping[str, tuple[list[str], dict[str, Any]]],
    headings: Mapping[str, str],
    shows_advanced: bool,
) -> None:
    """Add the flags of settings, in the order of their headings; an advanced one is hidden unless asked for."""
    for name, (flags, options) in added.items():
        if name not in headings:
            parser.add_argument(*flags, **options)
    groups = {heading: parser.add_argument_group(heading) for heading in dict.fromkeys(headings.values())}
    for name, heading in headings.items():
        if name in added:
            flags, options = added[name]
            is_hidden = heading == ADVANCED and not shows_advanced
            groups[heading].add_argument(*flags, **options | ({"help": SUPPRESS} if is_hidden else {}))


def _parse(known: Collection[str], parser: ArgumentParser, argv: list[str]) -> Namespace:
    """Refuse unknown flags with the nearest one. Repeated texts are kept from pydantic-settings, which splits lists."""
    found, unknown = parser.parse_known_args(argv)
    if unknown:
        name = unknown[0].lstrip("-").partition("=")[0].replace("-", "_")
        hint = _nearest(name, [each for each in known if each != "model"], _flag)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return Namespace(**{name: tuple(each) if isinstance(each, list) else each for name, each in vars(found).items()})


def _add_argument(
    fields: Mapping[str, FieldInfo],
    added: dict[str, tuple[list[str], dict[str, Any]]],
    parser: ArgumentParser,
    *flags: str,
    **options: Any,
) -> None:
    """Word the help, put the shortest flag first, and let only texts be repeated: of numbers the last flag counts."""
    del parser
    name = options.get("dest", flags[0])
    field = fields[name]
    leaves = _leaves(field.annotation)
    if get_origin(field.annotation) is tuple and not flags[0].startswith("-"):
        options |= {"action": "store", "nargs": "*"}
    elif get_origin(field.annotation) is tuple:
        options["action"] = "append" if leaves == [str] else "store"
        if extra := field.json_schema_extra:  # several may follow the flag
            options |= {"action": "extend", **cast(dict[str, Any], extra)}
    if "metavar" in options and flags[0].startswith("-"):
        options["metavar"] = METAVARS.get(leaves[0]) or f"{{{','.join(map(str, leaves))}}}"
    added[name] = (sorted(flags, key=len), options | {"help": _help(field)})


def _leaves(annotation: Any) -> list[Any]:
    """Return the types or choices at the leaves of an annotation."""
    parts = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    return [leaf for part in parts if part not in (NoneType, ...) for leaf in _leaves(part)] or [annotation]


def _help(field: FieldInfo) -> str:
    text = (field.description or "").replace("%", "%%")
    if field.is_required() or "(default: " in text or field.default in (None, (), False, ""):
        return text
    default = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
    return f"{text} (default: {default})"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _replaced(name: str) -> list[str]:
    """Return the setting that does what an earlier version's setting did, if there is one."""
    return [REPLACED[name]] if name in REPLACED else []


def _nearest(name: str, known: Iterable[str], spell: Callable[[str], str] = str) -> str:
    """Return a suggestion for a misspelt name."""
    near = _replaced(name) or get_close_matches(name, list(known), 1)
    return f" (did you mean {spell(near[0])}?)" if near else ""


def _environment(kind: type[Settings]) -> dict[str, Any]:
    """Return the fields set in the environment, without the NEURONSERVE_PORT=tcp://... of Kubernetes Services."""
    values = EnvSettingsSource(kind)()
    if str(values.get("port", "")).startswith("tcp://"):
        del values["port"]
    return values


def config_file(path: str) -> dict[str, Any]:
    """The settings in a YAML file; keys may be written with dashes, as the flags are.

    Read here, because pydantic-settings takes a missing file, a directory or a pipe for an empty file.
    """
    import yaml  # not for a start without a file

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"--config: cannot read {path!r}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"--config: {path} is not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict | None):
        raise SettingsError(f"--config: {path} must hold a mapping of settings, not {type(content).__name__}")
    values = {str(key).replace("-", "_"): value for key, value in (content or {}).items()}
    if "config" in values:
        raise SettingsError(f"{path}: config: a file cannot name another one")
    return values


def _complaint(kind: type[Settings], name: str, error: Any) -> str:
    """Return the problem, the value and the limit in one line."""
    if error["type"] == "extra_forbidden":
        return f"there is no such setting{_nearest(name, names(kind))}"
    if error["type"] == "missing":
        return "is needed"
    message = str(error["msg"]).removeprefix("Value error, ").split(", unable to")[0].split(" after validation")[0]
    expected = re.sub(r"^(Input|String|Tuple|Value) should ", "must ", message)
    return f"{expected}, not {str(error['input'])[:80]!r}"


def traces_protocol(asked: str | None) -> str:
    """Return the OTLP protocol: the given one, that of OpenTelemetry's variables, else grpc. Raises SettingsError."""
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        value = asked or os.environ.get(name)
        if value in {"grpc", "http/protobuf"}:
            return value
        if value:
            raise SettingsError(f"{name}: must be 'grpc' or 'http/protobuf', not {value[:80]!r}")
    return "grpc"


def runtime_cores() -> RuntimeCores:
    """The Neuron runtime's variables; an empty one counts as not set."""
    variables = ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES")
    visible, count = (os.environ.get(variable) or None for variable in variables)
    return RuntimeCores(visible, count)


def take_cores(visible: str) -> None:
    """Let this process have these NeuronCores, and no others."""
    os.environ["NEURON_RT_VISIBLE_CORES"] = visible


def neuron_variables() -> dict[str, str]:
    """The variables of Neuron's compiler, runtime and libraries; an empty one counts as not set."""
    return {name: value for name, value in os.environ.items() if name.startswith(NEURON_PREFIXES) and value}


def process_environment() -> dict[str, str]:
    """Return all variables without those that the start of this command has added, for a user's own command."""
    added = {"PYTHONSAFEPATH": "neuronserve", "PYDANTIC_DISABLE_PLUGINS": "__all__"}
    return {name: value for name, value in os.environ.items() if added.get(name) != value}


def cache_home() -> Path:
    """Directory of this user's caches (XDG base directory specification)."""
    return _user_directory("XDG_CACHE_HOME", ".cache")


def data_home() -> Path:
    """Directory of this user's data (XDG base directory specification)."""
    return _user_directory("XDG_DATA_HOME", ".local/share")


def _user_directory(variable: str, default: str) -> Path:
    try:
        return Path(os.environ.get(variable) or Path.home() / default)
    except RuntimeError:  # a user id of no account, without HOME: container runtimes say "/" then
        return Path("/") / default


def default_kernel_cache() -> str:
    """Default directory of compiled kernels."""
    return str(cache_home() / "neuronserve" / "kernels")
