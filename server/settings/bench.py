"""The settings of `neuronserve bench latency`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from server.bench.options import LatencyOptions, Workload
from server.settings.engine import EngineSettings

Sizes = Annotated[tuple[int, ...], NoDecode]


class LatencySettings(EngineSettings):
    """What `neuronserve bench latency` can be told, besides the engine's settings."""

    batch_size: Sizes = Field((1,), description="sequences at once; several with commas")
    input_len: int = Field(128, ge=1, description="prompt tokens of each sequence")
    output_len: int = Field(32, ge=2, description="generated tokens of each sequence")
    num_iters: int = Field(5, ge=1, le=1000, description="runs that count, after one that does not")
    seed: int = Field(0, description="of the random prompts")
    json_file: str | None = Field(
        None, description="write the results to this file", json_schema_extra={"flag": "--json"}
    )

    @field_validator("batch_size", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(value.split(",")) if isinstance(value, str) else value

    @field_validator("batch_size")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1:
            raise ValueError("must be whole numbers of at least 1")
        return value

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """One for each batch size."""
        return tuple(Workload(size, self.input_len, self.output_len) for size in self.batch_size)

    @property
    def options(self) -> LatencyOptions:
        """How to measure, and where to write."""
        return LatencyOptions(self.num_iters, self.seed, Path(self.json_file) if self.json_file else None)
