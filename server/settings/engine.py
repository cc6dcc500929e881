"""What every command that loads a model can be told: the model, the part it runs on, and the limits of a step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from server.config import Dtype, EngineConfig
from server.settings.sources import ENV_PREFIX, Texts, cache_home, split_text

DEFAULT_MODEL = Path(__file__).resolve().parent.parent / "default_model"


class EngineSettings(BaseSettings):
    """Base of the settings of each command. Flag names are vLLM's where vLLM has the flag."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True, validate_default=False)

    model: str = Field(str(DEFAULT_MODEL), description="checkpoint directory or hub id (default: the built-in model)")
    revision: str | None = Field(None, description="branch, tag or commit of a hub id")
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="activations, KV cache and unquantized weights; auto is bfloat16"
    )
    quantization: Literal["none", "int8", "int8-weight-only", "fp8", "fp8_e5m2"] = Field(
        "none", description="format of the weights; int8 also quantizes activations, token by token"
    )
    modules_to_not_convert: Texts = Field((), description="module that is not quantized, such as lm_head; repeatable")
    device: str = Field("inf2.xlarge", description="emulated instance, such as inf1.xlarge, inf2.8xlarge, trn1.2xlarge")
    tensor_parallel_size: int = Field(1, ge=1, le=64, description="NeuronCores the model is sharded over")
    max_model_len: int | None = Field(None, ge=2, description="longest context in tokens (default: the model's)")
    max_num_seqs: int = Field(64, ge=1, le=4096, description="sequences running at once")
    max_num_batched_tokens: int = Field(512, ge=1, le=131072, description="tokens computed in one step")
    max_num_queued_reqs: int = Field(1024, ge=1, le=1_000_000, description="open sequences; more get a 429")
    block_size: int = Field(32, ge=16, le=1024, multiple_of=16, description="tokens in a KV cache block")
    enable_prefix_caching: bool = Field(True, description="share the KV cache of equal prompt beginnings")
    num_gpu_blocks_override: int | None = Field(
        None, ge=2, description="KV cache blocks (default: what fits in device memory)"
    )
    device_memory_utilization: float = Field(0.9, gt=0, le=1, description="share of device memory that may be used")
    cpu_threads: int | None = Field(None, ge=1, le=1024, description="host threads (default: all this process may use)")
    kernel_cache_dir: str | None = Field(
        None, description="where compiled kernels are kept (default: under XDG_CACHE_HOME or ~/.cache)"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe messages shown")

    @field_validator("modules_to_not_convert", mode="before")
    @classmethod
    def _split_modules(cls, value: Any) -> Any:
        return split_text(value)

    @model_validator(mode="after")
    def _every_sequence_gets_a_token(self) -> Self:
        """The scheduler gives every running sequence at least one token in each step."""
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}: "
                f"it must be at least max_num_seqs, {self.max_num_seqs}"
            )
        return self

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

    def engine_config(self, model_path: Path) -> EngineConfig:
        """The engine's slice, with everything that depends on the host resolved."""
        dtype: Dtype = "bfloat16" if self.dtype == "auto" else self.dtype
        return EngineConfig(
            model_path=str(model_path),
            device=self.device,
            tensor_parallel_size=self.tensor_parallel_size,
            dtype=dtype,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_queued_reqs=self.max_num_queued_reqs,
            block_size=self.block_size,
            enable_prefix_caching=self.enable_prefix_caching,
            device_memory_utilization=self.device_memory_utilization,
            num_blocks_override=self.num_gpu_blocks_override,
            cpu_threads=self.cpu_threads or len(os.sched_getaffinity(0)),
            quantization=None if self.quantization == "none" else self.quantization,
            modules_to_not_convert=self.modules_to_not_convert,
            kernel_cache_dir=self.kernel_cache_dir or str(cache_home() / "neuronserve" / "kernels"),
        )
