"""Settings of every command that reads weights: where they are, and for which formats, cores and lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from server.config import RequestedFormats
from server.settings.base import Numbers, Settings, Texts, slice_of
from server.settings.sources import cache_home

DEFAULT_MODEL = Path(__file__).resolve().parent.parent / "default_model"


class ModelSettings(Settings):
    """Base of the settings of each command that compiles or serves. Names are vLLM's, of buckets NxD Inference's."""

    model: CliPositionalArg[str] = Field(
        str(DEFAULT_MODEL), description="checkpoint directory or hub id (default: the built-in model)"
    )
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
    max_model_len: int | None = Field(None, ge=2, description="longest context in tokens (default: the model's)")
    context_encoding_buckets: Numbers = Field(
        (), description="compiled prompt lengths, with commas (default: powers of two from 128)"
    )
    token_generation_buckets: Numbers = Field(
        (), description="context lengths that decode is compiled for, with commas (default: by --batching)"
    )

    @property
    def requested_formats(self) -> RequestedFormats:
        """Formats, with what `auto` stands for."""
        return slice_of(
            RequestedFormats,
            self,
            dtype="bfloat16" if self.dtype == "auto" else self.dtype,
            quantization=None if self.quantization == "auto" else self.quantization,
        )

    @property
    def kernel_cache(self) -> str:
        """Directory of compiled kernels."""
        return self.kernel_cache_dir or str(cache_home() / "neuronserve" / "kernels")
