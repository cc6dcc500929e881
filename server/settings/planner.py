"""The settings of `neuronserve plan` and `neuronserve simulate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic.config import JsonDict
from pydantic_settings import NoDecode, SettingsConfigDict

from server.config import Batching, Quantization
from server.device.prices import PriceBasis
from server.settings.catalog import CatalogSettings
from server.settings.sources import ENV_PREFIX, Texts, split_text

Degrees = Annotated[tuple[int, ...], NoDecode]
BATCHING_HELP = "mix prompts and decodes in a step, or run them apart on automatic buckets"
JSON_FLAG: JsonDict = {"flag": "--json"}


class _PlannerSettings(CatalogSettings):
    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    model: str = Field("llama-8b", description="checkpoint directory, config.json, or a shape such as llama-8b")
    price_basis: PriceBasis = Field("on_demand", description="price of the catalogue to use")
    device_memory_utilization: float = Field(0.9, gt=0, le=1, description="share of device memory that may be used")
    json_file: str | None = Field(None, description="write the report to this file", json_schema_extra=JSON_FLAG)


class PlanSettings(_PlannerSettings):
    """What `neuronserve plan` can be told."""

    input_len: int = Field(1024, description="prompt tokens of a request")
    output_len: int = Field(256, description="generated tokens of a request")
    request_rate: float | None = Field(None, description="requests a second (default: 1, Poisson; or the trace's own)")
    trace: str | None = Field(None, description="trace file whose lengths take the place of these")
    ttft_ms: float | None = Field(None, description="limit of the mean time to first token (default: none)")
    tpot_ms: float | None = Field(None, description="limit of the mean time per output token (default: none)")
    device: Texts = Field((), description="instance to consider, may be repeated (default: all)")
    batching: Batching = Field("continuous", description=BATCHING_HELP)
    tensor_parallel_size: Degrees = Field((), description="degrees to consider, with commas (default: all)")
    chip_watts: float | None = Field(None, description="power of one chip, for tokens per joule (default: not known)")
    check: bool = Field(False, description="simulate the chosen configuration and compare")
    pipeline_parallel_size: Degrees = Field((1,), description="numbers of pipeline stages to consider, with commas")
    picture: str | None = Field(None, description="write the Pareto front to this .html or .png file")

    @field_validator("device", "tensor_parallel_size", "pipeline_parallel_size", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return split_text(value)

    @property
    def picture_path(self) -> Path | None:
        return Path(self.picture) if self.picture else None


class SimulateSettings(_PlannerSettings):
    """What `neuronserve simulate` can be told. Lengths are a number, or a range such as 128:1024."""

    device: str = Field("inf2.xlarge", description="instance to simulate")
    tensor_parallel_size: int = Field(2, ge=1, le=64, description="NeuronCores of one engine")
    data_parallel_size: int = Field(1, ge=1, description="engines on each instance")
    replicas: int = Field(1, ge=1, description="instances")
    max_model_len: int = Field(4096, ge=2, description="longest context in tokens")
    max_num_seqs: int = Field(16, ge=1, description="slots that decode is compiled for")
    batching: Batching = Field("continuous", description=BATCHING_HELP)
    quantization: Quantization | None = Field(None, description="8-bit weights (default: bfloat16)")
    routing: Literal["least-loaded", "round-robin", "prefix-aware"] = Field(
        "least-loaded", description="which engine gets a request"
    )
    trace: str | None = Field(None, description="trace file instead of synthetic requests")
    num_prompts: int = Field(1000, ge=1, description="synthetic requests")
    request_rate: float = Field(1.0, description="synthetic requests a second; inf for all at once")
    burstiness: float = Field(1.0, gt=0, description="shape of the gaps: 1 is Poisson, below 1 is burstier")
    random_input_len: str = Field("1024", description="prompt tokens of a synthetic request")
    random_output_len: str = Field("256", description="generated tokens of a synthetic request")
    max_concurrency: int | None = Field(None, ge=1, description="requests open at once (default: no limit)")
    seed: int = Field(0, description="of the synthetic requests")
    ttft_ms: float | None = Field(None, gt=0, description="a good request's limit (default: none)")
    tpot_ms: float | None = Field(None, gt=0, description="a good request's limit (default: none)")
    e2el_ms: float | None = Field(None, gt=0, description="a good request's limit (default: none)")
