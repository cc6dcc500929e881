"""Base class of settings, types of lists with commas, and slices of settings as records."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from ..errors import SettingsError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Slice = TypeVar("Slice", bound="DataclassInstance")

ENV_PREFIX = "NEURONSERVE_"


def split_commas(value: Any) -> Any:
    """Split a text at its commas: the form of a list in the environment and in YAML."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, bool | int | float):
        raise ValueError("must be text: put quotes around it")
    return value


def _numbers(value: Any) -> Any:
    """Split numbers at commas; one number is a list of one."""
    return (value,) if isinstance(value, int) else split_commas(value)


Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], NoDecode, BeforeValidator(split_commas)]
Numbers = Annotated[tuple[Annotated[int, Field(ge=1)], ...], NoDecode, BeforeValidator(_numbers)]
Lengths = Annotated[tuple[Annotated[int, Field(ge=0)], ...], NoDecode, BeforeValidator(_numbers)]
File = Annotated[Path | None, BeforeValidator(lambda value: value or None)]  # an empty name means no file


@dataclass(frozen=True, slots=True)
class Implied:
    """Value of a setting that follows from Neuron's own configuration."""

    value: Any
    source: str  # key or variable that has it
    is_default: bool = False  # a value given for the setting itself takes precedence


class Settings(BaseSettings):
    """Base of each command's settings. A field is a flag, an environment variable, and a key of the YAML file."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_prefix_target="all",
        extra="forbid",
        frozen=True,
        validate_default=False,
        defer_build=True,  # base classes are never built
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_implicit_flags=True,
        cli_parse_none_str="\0",  # no word of a command line means None
        cli_shortcuts={"json-file": "json", "json-output": "json", "output": "o", "check-file": "check"}
        | {"input-file": "i", "output-file": "o"},
    )

    has_headings: ClassVar[bool] = False  # the help groups the settings, and shows some with --help-all alone

    config: File = Field(None, description="YAML file with these settings")

    def put_in_force(self) -> None:
        """Apply the settings that are state of the whole process. Raises StartError if one cannot be applied."""

    @classmethod
    def implied(cls, given: Mapping[str, Any], variables: Mapping[str, str]) -> Mapping[str, Implied]:
        """Return settings that follow from `given` and from Neuron's variables. Raises SettingsError."""
        del given, variables
        return {}

    @property
    def notices(self) -> tuple[str, ...]:
        """Return a line for each given setting that has no effect."""
        return ()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)  # `load_settings` reads the sources itself, to know where a value came from


class ReportSettings(Settings):
    """Base of the settings of commands that write a report."""

    json_file: File = Field(None, description="write the report to this file")


def write_report(path: Path | None, value: Any) -> None:
    """Write the file that `--json` names, if it names one. Raises SettingsError when it cannot be written."""
    if path is None:
        return
    try:
        path.write_text(json.dumps(_finite(value), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--json: cannot write {path}: {error.strerror}") from error


def _finite(value: Any) -> Any:
    """Return the value with null for numbers that JSON has no form of: infinity, and not a number."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def slice_of(kind: type[Slice], settings: BaseModel, **derived: Any) -> Slice:
    """Return a record filled from the settings that have its fields' names; `derived` gives the other fields."""
    equal = {field.name for field in fields(kind)} & type(settings).model_fields.keys() - derived.keys()
    return kind(**{name: getattr(settings, name) for name in equal}, **derived)
