"""The settings of `neuronserve embed`."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode

from ..config import EncodeConfig
from ..engine.encode.options import EmbedOptions
from ..host.affinity import NONE, choose_cpus
from ..host.cpu_quota import host_threads
from .base import File, slice_of
from .model import ModelSettings
from .pooling import PoolingSettings


def _one_or_many(value: Any) -> Any:
    """Keep a text whole, with its commas."""
    return (value,) if isinstance(value, str) else value


Lines = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_one_or_many)]


class EmbedSettings(ModelSettings, PoolingSettings):
    """Settings of `neuronserve embed`."""

    text: Lines = Field((), description="text to encode; repeatable")
    file: File = Field(None, description="file with a text on each line, - is standard input")
    query: str | None = Field(None, description="first text of a pair with each of the others, for a cross-encoder")
    prompt_name: str | None = Field(None, description="prompt of the model's own to put before each text")
    prompt: str | None = Field(None, description="text to put before each text")
    dimensions: int | None = Field(None, ge=1, description="first values of each vector to keep, for models made so")
    format: Literal["text", "json"] = Field("text", description="a line for each text, or one JSON object")
    max_num_seqs: int = Field(256, ge=1, le=4096, description="texts in one step")
    max_num_batched_tokens: int = Field(
        1024, ge=1, le=131072, description="tokens in one step (at least those of the longest text allowed)"
    )
    device_memory_utilization: float = Field(0.92, gt=0, le=1, description="share of device memory that may be used")
    cpu_threads: int | None = Field(None, ge=1, le=1024, description="host threads (default: as CPUs and quota allow)")
    cpu_binding: str = Field(
        NONE, description="CPUs that the host threads stay on, such as 0-3,8; auto takes one of each core first"
    )
    kernel_checks: bool = Field(
        False, description="check that each access of a kernel stays inside its operands; very slow"
    )

    @model_validator(mode="after")
    def _has_texts(self) -> Self:
        if not self.text and self.file is None:
            raise ValueError("text is missing: give --text or --file")
        if self.prompt is not None and self.prompt_name is not None:
            raise ValueError("prompt and prompt_name are both given: a text has one prompt")
        if self.query is not None and (self.prompt or self.prompt_name):
            raise ValueError("query is given: a pair has no prompt")
        return self

    def encode_config(self, model_path: object) -> EncodeConfig:
        """Return the configuration of the encoder."""
        formats, cpu_threads = self.requested_formats, self.cpu_threads or host_threads()
        return slice_of(
            EncodeConfig,
            self,
            model_path=str(model_path),
            dtype=formats.dtype,
            quantization=formats.quantization,
            groups=formats.groups,
            kernel_cache_dir=self.kernel_cache,
            cpu_threads=cpu_threads,
            cpus=choose_cpus(self.cpu_binding, cpu_threads),
            catalog=self.catalog_config,
            pooling=self.pooling_mode,
            normalize=self.normalizes,
        )

    @property
    def options(self) -> EmbedOptions:
        """Texts to encode, and the form of the output."""
        return slice_of(EmbedOptions, self, model_name=self.model, texts=self.text)
