"""Settings of `neuronserve plan`."""

from dataclasses import replace
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import CliToggleFlag, NoDecode

from ...server.config import CatalogConfig
from ...server.cost.speculation import SpeculativeMethod
from ...server.device.prices import DEFAULT_REGION
from ...server.errors import SettingsError
from ...server.settings.base import File, Numbers, Texts, slice_of, split_commas
from ...server.settings.catalog import CatalogSettings
from ...workload.workload import Workload
from ..command import View
from ..emit.folder import Emission
from ..model_names import resolve_shape
from ..plan.bounds import MAX_CONFIDENCE, MAX_RATE, MAX_TOKENS, MIN_CONFIDENCE, MIN_RATE
from ..plan.demand import with_trace
from ..plan.options import LIMITS, MAX_GUESSES, MAX_LORA_RANK, MAX_LORAS, KVDtype, PlanOptions, TextTask
from ..plan.weight_types import COMPARED, WeightDtype
from .base import PlannerSettings

Limit = Annotated[float | None, Field(gt=0, allow_inf_nan=False)]


class DeploymentSettings(CatalogSettings):
    """Settings of the instances and features that a plan considers. The first region's prices are in force."""

    region: str = Field(
        DEFAULT_REGION, description="AWS region of the prices; of several, with commas, the cheapest for each instance"
    )
    logical_nc_configs: Numbers = Field(
        (),
        validation_alias="lnc",
        description="physical cores in a logical one to consider, with commas (default: as each chip comes)",
    )
    instances_per_replica: Numbers = Field(
        (), description="instances that a replica is spread over, with commas (default: 1, or as few as hold the model)"
    )
    save_sharded_checkpoint: CliToggleFlag[bool] = Field(
        False, description="weights are sharded elsewhere, so the instance's host needs no memory for all of them"
    )
    kv_cache_dtype: KVDtype = Field("bfloat16", description="type of the KV cache; fp8 may save memory and no time")
    speculative_method: SpeculativeMethod = Field(
        "draft_model",
        description="speculative decoding by a draft model, an EAGLE3 or P-EAGLE head, or the text (ngram)",
    )
    speculative_model: str | None = Field(None, description="draft model of speculative decoding, as MODEL")
    num_speculative_tokens: int | None = Field(
        None, ge=1, le=MAX_GUESSES, description="tokens that are guessed in a step"
    )
    acceptance_rate: float | None = Field(
        None, ge=0, le=1, description="share of guesses that are right if all guesses before them are"
    )
    max_loras: int = Field(0, ge=0, le=MAX_LORAS, description="LoRA adapters on the cores; each slot uses one")
    max_lora_rank: int = Field(16, ge=1, le=MAX_LORA_RANK, description="rank of the LoRA adapters")

    @property
    def catalog_config(self) -> CatalogConfig:
        """Return the sources of the catalogue, with the prices of the first region."""
        return replace(super().catalog_config, region=self.regions[0])

    @property
    def regions(self) -> tuple[str, ...]:
        """Return the wanted regions."""
        return tuple(dict.fromkeys(split_commas(self.region))) or (self.region,)


DECODER_ONLY = (  # settings of a plan that mean nothing for an encoder
    *("output_tokens", "tpot_ms", "tpot_p95_ms", "tpot_p99_ms", "max_model_len"),
    *("pipeline_parallel_sizes", "stack", "trace", "chip_watts", "grid_g_per_kwh"),
    *("check", "disaggregate", "gpus", "picture", "emit", "emit_row"),
    *sorted(DeploymentSettings.model_fields.keys() - CatalogSettings.model_fields.keys()),
)


class PlanSettings(DeploymentSettings, PlannerSettings):
    """Settings of `neuronserve plan`. An alias is a flag whose name differs from the option of the planner."""

    input_tokens: int = Field(
        1024, ge=1, le=MAX_TOKENS, validation_alias="input_len", description="prompt tokens of a request"
    )
    output_tokens: int = Field(
        256, ge=1, le=MAX_TOKENS, validation_alias="output_len", description="generated tokens of a request"
    )
    request_rate: float | None = Field(
        None, ge=MIN_RATE, le=MAX_RATE, description="requests a second (default: 1, Poisson; or the trace's own)"
    )
    ttft_ms: Limit = Field(None, description="limit of the mean time to first token (default: none)")
    tpot_ms: Limit = Field(None, description="limit of the mean time per output token (default: none)")
    ttft_p95_ms: Limit = Field(None, description="limit of the time to first token that 95 % of the requests keep")
    ttft_p99_ms: Limit = Field(None, description="as --ttft-p95-ms, 99 %")
    tpot_p95_ms: Limit = Field(None, description="limit of the time per output token that 95 % of the requests keep")
    tpot_p99_ms: Limit = Field(None, description="as --tpot-p95-ms, 99 %")
    usd_per_hour: Limit = Field(
        None, validation_alias="budget", description="the most dollars an hour for all instances (default: any)"
    )
    dtypes: Annotated[tuple[WeightDtype, ...], NoDecode, BeforeValidator(split_commas)] = Field(
        COMPARED, validation_alias="quantization", description="formats of the weights to consider, with commas"
    )
    max_model_len: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="positions of a slot (default: the bucket of input and output)"
    )
    devices: Texts = Field(
        (), validation_alias="device", description="instance to consider, may be repeated (default: all)"
    )
    tensor_parallel_sizes: Numbers = Field(
        (), validation_alias="tensor_parallel_size", description="degrees to consider, with commas (default: all)"
    )
    pipeline_parallel_sizes: Numbers = Field(
        (1,),
        validation_alias="pipeline_parallel_size",
        description="numbers of pipeline stages to consider, with commas",
    )
    task: TextTask = Field(
        "embed", description="of an encoder: vectors (embed), or scores of pairs (rerank) or texts (classify)"
    )
    chip_watts: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="power of one chip, for tokens per joule (default: not known)"
    )
    grid_g_per_kwh: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="grams of CO2e for a kWh, with --chip-watts (default: not known)"
    )
    confidence: float = Field(
        0.5,
        ge=MIN_CONFIDENCE,
        le=MAX_CONFIDENCE,
        description="share of measured step times that the sizing covers: 0.5 as predicted, 0.9 the slow end of bands",
    )
    check: CliToggleFlag[bool] = Field(
        False, description="compare the plan's means with a longer simulation of the first row"
    )
    disaggregate: str | None = Field(
        None, description="prefill:P,decode:D: simulate instances of the first row divided so, and undivided"
    )
    gpus: CliToggleFlag[bool] = Field(False, description="print published GPU figures of models of this size")
    wide: CliToggleFlag[bool] = Field(
        False, description="print all columns of the tables, and the excluded configurations"
    )
    picture: File = Field(None, description="write the Pareto front to this .html or .png file")
    emit: File = Field(
        None, description="write files that deploy the first row into this directory: vLLM, Helm, AWS, a load test"
    )
    serve: CliToggleFlag[bool] = Field(False, description="serve the planner's page for browsers instead of printing")
    host: str = Field("127.0.0.1", description="with --serve: address to listen on; 0.0.0.0 for all")
    port: int = Field(8001, ge=0, le=65535, description="with --serve: TCP port; 0 picks a free one")
    emit_row: int | None = Field(None, ge=1, description="row of the tables to write instead, from 1")

    @model_validator(mode="after")
    def _row_of_what(self) -> Self:
        if self.emit_row is not None and self.emit is None:
            raise ValueError("--emit-row chooses what --emit writes: give both")
        return self

    @property
    def emission(self) -> Emission | None:
        """Return the directory and row of --emit, if it is given."""
        return None if self.emit is None else Emission(self.emit, self.emit_row)

    @property
    def is_encoder(self) -> bool:
        """Return whether the model is an encoder. Raises SettingsError for an unknown model."""
        return resolve_shape(self.model).is_encoder

    @property
    def encoder_options(self) -> PlanOptions:
        """Return the options for an encoder. Raises SettingsError for settings that mean nothing for one."""
        fields = type(self).model_fields
        given = [str(fields[name].validation_alias or name) for name in DECODER_ONLY if name in self.model_fields_set]
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise SettingsError(f"{flags}: {self.model} is an encoder: a request is one pass, and no tokens follow")
        return self.options(None)

    @property
    def view(self) -> View:
        """Return the parts of the plan that are shown."""
        return slice_of(View, self)

    def options(self, trace: Workload | None) -> PlanOptions:
        """Return the planner's options; lengths of a trace override given ones. Raises SettingsError."""
        if "task" in self.model_fields_set and not self.is_encoder:
            raise SettingsError(f"--task is {self.task}: {self.model} is no encoder")
        options = slice_of(
            PlanOptions,
            self,
            regions=self.regions,
            request_rate=1.0 if self.request_rate is None else self.request_rate,
            **{name: _seconds(getattr(self, name.removesuffix("_s") + "_ms")) for name in LIMITS},
        )
        return options if trace is None else with_trace(options, trace, self.request_rate)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3
