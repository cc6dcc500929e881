"""What every command that reads weights can be told: where they are, and the formats and cores they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from server.config import AskedFormats
from server.settings.sources import ENV_PREFIX, Texts, cache_home, split_text

DEFAULT_MODEL = Path(__file__).resolve().parent.parent / "default_model"


class ModelSettings(BaseSettings):
    """Base of the settings of each command. Flag names are vLLM's where vLLM has the flag."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True, validate_default=False)

    model: str = Field(str(DEFAULT_MODEL), description="checkpoint directory or hub id (default: the built-in model)")
    revision: str | None = Field(None, description="branch, tag or commit of a hub id")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="activations and unquantized weights; auto is bfloat16"
    )
    quantization: Literal["auto", "none", "int8", "int8-weight-only", "fp8", "fp8_e5m2"] = Field(
        "auto",
        description="format of the weights; int8 also quantizes activations, token by token; auto is as the files are",
    )
    modules_to_not_convert: Texts = Field((), description="module that is not quantized, such as lm_head; repeatable")
    tensor_parallel_size: int = Field(1, ge=1, le=64, description="NeuronCores the model is sharded over")
    kernel_cache_dir: str | None = Field(
        None, description="where compiled kernels are kept (default: under XDG_CACHE_HOME or ~/.cache)"
    )

    @field_validator("modules_to_not_convert", mode="before")
    @classmethod
    def _split_modules(cls, value: Any) -> Any:
        return split_text(value)

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
        return (init_settings,)  # `load_settings` merges the others itself, to know where a value came from

    @property
    def asked_formats(self) -> AskedFormats:
        """Formats, with what `auto` stands for."""
        return AskedFormats(
            "bfloat16" if self.dtype == "auto" else self.dtype,
            None if self.quantization == "auto" else self.quantization,
            self.modules_to_not_convert,
        )

    @property
    def kernel_cache(self) -> str:
        """Directory of compiled kernels."""
        return self.kernel_cache_dir or str(cache_home() / "neuronserve" / "kernels")
