"""Settings of the `neuronserve bench` subcommands that load a model."""

from pathlib import Path
from typing import Annotated, Self, get_args

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode

from ..bench.options import (
    AccuracyOptions,
    BatchShape,
    Drawing,
    LatencyOptions,
    MeasuredFormat,
    ThroughputOptions,
)
from ..config.formats import Dtype, Quantization, WeightFormat
from .base import File, Lengths, Numbers, ReportSettings, slice_of, split_commas
from .engine import EngineSettings

FORMATS: tuple[WeightFormat, ...] = (*get_args(Dtype), *get_args(Quantization))
Sizes = Annotated[Numbers, Field(min_length=1)]
ContextLens = Annotated[Lengths, Field(min_length=1)]
Formats = Annotated[tuple[MeasuredFormat, ...], NoDecode, BeforeValidator(split_commas), Field(min_length=1)]


class LatencySettings(EngineSettings, ReportSettings):
    """Settings of `neuronserve bench latency`, beside the engine's."""

    batch_size: Sizes = Field((1,), description="sequences at once; several with commas")
    context_len: ContextLens = Field(
        (0,), description="tokens before each prompt, their keys and values copied; several with commas"
    )
    input_len: int = Field(128, ge=1, description="prompt tokens of each sequence")
    output_len: int = Field(32, ge=2, description="generated tokens of each sequence")
    temperature: float = Field(0.0, ge=0.0, le=2.0, description="sampling temperature; 0 is greedy")
    top_k: int = Field(0, ge=0, description="sample from this many most likely tokens; 0 is all")
    top_p: float = Field(
        1.0, gt=0.0, le=1.0, description="sample from the most likely tokens with this total probability"
    )
    min_p: float = Field(
        0.0, ge=0.0, le=1.0, description="sample from tokens with at least this share of the highest probability"
    )
    num_iters: int = Field(5, ge=1, le=1000, description="measured runs, after one warm-up")
    seed: int = Field(0, ge=0, description="seed of the random prompts")
    trace: File = Field(None, description="file for a trace of one extra run of the first batch size")

    @property
    def workloads(self) -> tuple[BatchShape, ...]:
        """Batch shapes, one for each context length and batch size."""
        drawing = slice_of(Drawing, self)
        sizes = [(size, length) for length in self.context_len for size in self.batch_size]
        return tuple(
            slice_of(BatchShape, self, batch_size=size, context_len=length, drawing=drawing) for size, length in sizes
        )

    @property
    def options(self) -> LatencyOptions:
        """Options of the measurement."""
        return slice_of(LatencyOptions, self, trace_file=self.trace)


class ThroughputSettings(EngineSettings, ReportSettings):
    """Settings of `neuronserve bench throughput`, beside the engine's."""

    num_prompts: int | None = Field(
        None, ge=1, le=1_000_000, description="sequences in all, sent at once (default: batch_size)"
    )
    batch_size: Sizes = Field((32,), description="sequences at once; several with commas")
    input_len: Sizes = Field((128,), description="prompt tokens of each sequence; several with commas")
    output_len: int = Field(64, ge=2, description="generated tokens of each sequence")
    num_iters: int = Field(3, ge=1, le=1000, description="measured runs, after one warm-up")
    seed: int = Field(0, ge=0, description="seed of the random prompts")

    @property
    def workloads(self) -> tuple[BatchShape, ...]:
        """Batch shapes, one for each batch size and prompt length."""
        sizes = [(size, length) for length in self.input_len for size in self.batch_size]
        return tuple(slice_of(BatchShape, self, batch_size=size, input_len=length) for size, length in sizes)

    @property
    def options(self) -> ThroughputOptions:
        """Options of the measurement."""
        return slice_of(ThroughputOptions, self)


class AccuracySettings(EngineSettings, ReportSettings):
    """Settings of `neuronserve bench accuracy`, beside the engine's."""

    text: str | None = Field(None, description='text to measure on: a file, or .jsonl with {"text": ...} lines')
    num_tokens: int = Field(10_000, ge=2, le=10_000_000, description="tokens of the text to use")
    window_len: int = Field(512, ge=2, description="longest window of a document, in tokens")
    formats: Formats = Field(
        FORMATS, description="formats to compare with float32, several with commas; auto is the files' own"
    )

    @model_validator(mode="after")
    def _formats_alone_choose(self) -> Self:
        if self.dtype != "auto" or self.quantization != "auto":
            raise ValueError("dtype and quantization are what is compared: name them with formats")
        if self.text is None:
            raise ValueError("text is missing: name a file with --text")
        return self

    @property
    def compiled_model(self) -> None:
        """None: accuracy compares the checkpoint itself."""

    @property
    def options(self) -> AccuracyOptions:
        """Options of the measurement."""
        return slice_of(AccuracyOptions, self, text_file=Path(self.text or ""))
