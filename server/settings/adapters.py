"""Settings of LoRA adapters, under vLLM's names."""

import json
from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import CliToggleFlag, NoDecode

from ..api.config import MAX_ADAPTER_NAME
from ..config import LoraConfig, LoraModule
from .base import Settings, split_commas

MAX_RANK = 256
DEFAULT_LORAS = 4


def _pairs(value: Any) -> Any:
    """Return each adapter or model as NAME=PATH; JSON or YAML with name and path is accepted too."""
    if isinstance(value, str):
        text = value.strip()
        value = _json(text) if text[:1] in ("[", "{") else split_commas(text)
    if isinstance(value, dict):
        value = (value,)
    return tuple(_pair(item) for item in value) if isinstance(value, Iterable) else value


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"must be NAME=PATH or JSON with name and path: {error}") from None


def _pair(item: Any) -> str:
    item = _json(item) if isinstance(item, str) and item.lstrip().startswith("{") else item
    if isinstance(item, dict):
        if set(item) != {"name", "path"}:
            raise ValueError(f"must have the keys name and path and no other, not {', '.join(map(str, item))}")
        item = f"{item['name']}={item['path']}"
    name, is_pair, path = str(item).partition("=")
    if not (is_pair and name and path and len(name) <= MAX_ADAPTER_NAME):
        raise ValueError(f"must be NAME=PATH with a name of at most {MAX_ADAPTER_NAME} characters")
    return f"{name}={path}"


# The flag takes several values.
Modules = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_pairs)]


class AdapterSettings(Settings):
    """Base of the settings of commands that compute with adapters."""

    enable_lora: CliToggleFlag[bool] = Field(False, description="reserve memory for LoRA adapters")
    lora_modules: Modules = Field(
        (),
        json_schema_extra={"nargs": "+"},
        description='adapters to load at the start, as NAME=PATH or {"name": ..., "path": ...}; NAME is their model',
    )
    max_loras: int | None = Field(
        None, ge=1, le=1024, description="most loaded adapters (default: 4, or the number of lora_modules)"
    )
    max_lora_rank: int = Field(16, ge=1, le=MAX_RANK, description="largest rank of an adapter")

    @model_validator(mode="after")
    def _adapters_agree(self) -> Self:
        names = [module.name for module in self._modules]
        if doubles := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"lora_modules has {', '.join(sorted(doubles))} more than once")
        if self.max_loras is not None and len(names) > self.max_loras:
            raise ValueError(f"lora_modules has {len(names)} adapters, and max_loras is {self.max_loras}")
        return self

    @property
    def _modules(self) -> tuple[LoraModule, ...]:
        return tuple(LoraModule(name, path) for name, _, path in (pair.partition("=") for pair in self.lora_modules))

    @property
    def has_adapters(self) -> bool:
        """Whether memory is reserved for adapters."""
        return self.enable_lora or bool(self.lora_modules)

    @property
    def lora_config(self) -> LoraConfig | None:
        """Reserved adapters; None without adapters."""
        if not self.has_adapters:
            return None
        most = self.max_loras or max(DEFAULT_LORAS, len(self.lora_modules))
        return LoraConfig(most, self.max_lora_rank, self._modules)
