"""The settings of the subcommands of `neuronserve bench` that load a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode

from server.bench.options import AccuracyOptions, BatchShape, Drawing, LatencyOptions, ThroughputOptions
from server.config import Dtype, Quantization, WeightFormat
from server.settings.engine import EngineSettings

FORMATS: tuple[WeightFormat, ...] = (*get_args(Dtype), *get_args(Quantization))
JSON_FILE = Field(None, description="write the results to this file", json_schema_extra={"flag": "--json"})


def _split(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def _positive(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if not sizes or min(sizes) < 1:
        raise ValueError("must be whole numbers of at least 1")
    return sizes


Sizes = Annotated[tuple[int, ...], NoDecode, BeforeValidator(_split), AfterValidator(_positive)]
Formats = Annotated[tuple[WeightFormat, ...], NoDecode, BeforeValidator(_split)]


class LatencySettings(EngineSettings):
    """What `neuronserve bench latency` can be told, besides the engine's settings."""

    batch_size: Sizes = Field((1,), description="sequences at once; several with commas")
    input_len: int = Field(128, ge=1, description="prompt tokens of each sequence")
    output_len: int = Field(32, ge=2, description="generated tokens of each sequence")
    temperature: float = Field(0.0, ge=0.0, le=2.0, description="of the logits; 0 is greedy")
    top_k: int = Field(0, ge=0, description="draw from that many likeliest tokens; 0 is all")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="draw from the likeliest tokens of that share together")
    min_p: float = Field(0.0, ge=0.0, le=1.0, description="draw from tokens at least so likely beside the likeliest")
    num_iters: int = Field(5, ge=1, le=1000, description="runs that count, after one that does not")
    seed: int = Field(0, description="of the random prompts")
    json_file: str | None = JSON_FILE
    trace: str | None = Field(None, description="write a trace of one more run of the first batch size to this file")

    @property
    def workloads(self) -> tuple[BatchShape, ...]:
        """One for each batch size."""
        drawing = Drawing(self.temperature, self.top_k, self.top_p, self.min_p)
        return tuple(BatchShape(size, self.input_len, self.output_len, drawing) for size in self.batch_size)

    @property
    def options(self) -> LatencyOptions:
        """How to measure, and where to write."""
        json_file, trace = (Path(name) if name else None for name in (self.json_file, self.trace))
        return LatencyOptions(self.num_iters, self.seed, json_file, trace, self.trace_max_events)


class ThroughputSettings(EngineSettings):
    """What `neuronserve bench throughput` can be told, besides the engine's settings."""

    num_prompts: int | None = Field(
        None, ge=1, le=1_000_000, description="sequences in all, sent at once (default: batch_size)"
    )
    batch_size: Sizes = Field((32,), description="sequences at once; several with commas")
    input_len: Sizes = Field((128,), description="prompt tokens of each sequence; several with commas")
    output_len: int = Field(64, ge=2, description="generated tokens of each sequence")
    num_iters: int = Field(3, ge=1, le=1000, description="runs that count, after one that does not")
    seed: int = Field(0, description="of the random prompts")
    json_file: str | None = JSON_FILE

    @property
    def workloads(self) -> tuple[BatchShape, ...]:
        """One for each batch size and prompt length."""
        return tuple(BatchShape(size, length, self.output_len) for length in self.input_len for size in self.batch_size)

    @property
    def options(self) -> ThroughputOptions:
        """How to measure, and where to write."""
        json_file = Path(self.json_file) if self.json_file else None
        return ThroughputOptions(self.num_prompts, self.num_iters, self.seed, json_file)


class AccuracySettings(EngineSettings):
    """What `neuronserve bench accuracy` can be told, besides the engine's settings."""

    text: str | None = Field(None, description='text to measure on: a file, or .jsonl with {"text": ...} lines')
    num_tokens: int = Field(10_000, ge=2, le=10_000_000, description="tokens of it to use")
    window_len: int = Field(512, ge=2, description="longest piece of a document that is seen at once, in tokens")
    formats: Formats = Field(FORMATS, description="formats to hold against float32; several with commas")
    json_file: str | None = JSON_FILE

    @model_validator(mode="after")
    def _formats_alone_choose(self) -> Self:
        if self.dtype != "auto" or self.quantization != "auto":
            raise ValueError("dtype and quantization are what is compared: name them with formats")
        if self.text is None:
            raise ValueError("text is missing: name a file with --text")
        return self

    @property
    def options(self) -> AccuracyOptions:
        """What to measure on, and where to write."""
        json_file = Path(self.json_file) if self.json_file else None
        return AccuracyOptions(Path(self.text or ""), self.num_tokens, self.window_len, self.formats, json_file)
