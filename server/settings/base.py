"""What all settings have in common: where their names come from, lists with commas, and slices of equal names."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from neuronserve.server.errors import SettingsError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Slice = TypeVar("Slice", bound="DataclassInstance")

ENV_PREFIX = "NEURONSERVE_"


def split_commas(value: Any) -> Any:
    """The environment and YAML may give several texts as one with commas."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, bool | int | float):
        raise ValueError("must be text: put quotes around it")
    return value


def _numbers(value: Any) -> Any:
    """Numbers with commas between them, or one number."""
    return (value,) if isinstance(value, int) else split_commas(value)


Texts = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], NoDecode, BeforeValidator(split_commas)]
Numbers = Annotated[tuple[Annotated[int, Field(ge=1)], ...], NoDecode, BeforeValidator(_numbers)]
Lengths = Annotated[tuple[Annotated[int, Field(ge=0)], ...], NoDecode, BeforeValidator(_numbers)]
File = Annotated[Path | None, BeforeValidator(lambda value: value or None)]  # an empty name is no file


@dataclass(frozen=True, slots=True)
class Implied:
    """The value of a setting that follows from the configuration of other software."""

    value: Any
    source: str  # the key or variable that it is from
    is_default: bool = False  # the setting itself may say otherwise


class Settings(BaseSettings):
    """Base of the settings of each command. A field is a flag, a variable of the environment, and a key of the file."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_prefix_target="all",
        extra="forbid",
        frozen=True,
        validate_default=False,
        defer_build=True,  # of the classes that a command's settings are made of, only these are ever used
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_implicit_flags=True,
        cli_parse_none_str="\0",  # no word on a command line stands for None
        cli_shortcuts={"json-file": "json", "json-output": "json", "output": "o", "check-file": "check"}
        | {"input-file": "i", "output-file": "o"},
    )

    config: File = Field(None, description="YAML file with these settings")

    def put_in_force(self) -> None:
        """Set what of these settings is data of the whole process. Raises StartError for what cannot be."""

    @classmethod
    def implied(cls, given: Mapping[str, Any], variables: Mapping[str, str]) -> Mapping[str, Implied]:
        """Settings that follow from those `given` and from Neuron's variables. Raises SettingsError."""
        del given, variables
        return {}

    @property
    def notices(self) -> tuple[str, ...]:
        """What was given and changes nothing, a line each."""
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
        return (init_settings,)  # `load_settings` asks each source by itself, to know where a value came from


class ReportSettings(Settings):
    """Base of the settings of each command that ends with a report."""

    json_file: File = Field(None, description="write the report to this file")


def write_report(path: Path | None, value: Any) -> None:
    """Write the file that `--json` names, if it names one. Raises SettingsError when it cannot be written."""
    if path is None:
        return
    try:
        path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--json: cannot write {path}: {error.strerror}") from error


def slice_of(kind: type[Slice], settings: BaseModel, **derived: Any) -> Slice:
    """A frozen record filled from the settings of its fields' names; `derived` holds what is not a setting as it is."""
    equal = {field.name for field in fields(kind)} & type(settings).model_fields.keys() - derived.keys()
    return kind(**{name: getattr(settings, name) for name in equal}, **derived)
