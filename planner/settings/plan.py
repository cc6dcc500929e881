"""The settings of `neuronserve plan`, `simulate` and `calibrate`."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import CliPositionalArg, CliToggleFlag, NoDecode

from neuronserve.planner.command import View
from neuronserve.planner.emit.folder import Emission
from neuronserve.planner.model_names import resolve_decoder, resolve_shape
from neuronserve.planner.plan.bounds import MAX_RATE, MAX_TOKENS, MIN_RATE
from neuronserve.planner.plan.demand import with_trace
from neuronserve.planner.plan.options import LIMITS, PlanOptions
from neuronserve.planner.plan.weight_types import COMPARED, WeightDtype
from neuronserve.planner.settings.deployment import DeploymentSettings
from neuronserve.planner.simulate.autoscaling import MAX_REPLICAS, AutoscalePolicy, Autoscaling
from neuronserve.planner.simulate.options import SimulationOptions
from neuronserve.planner.simulate.routing import Routing
from neuronserve.server.config import MAX_NUM_SEQS, TENSOR_PARALLEL_SIZE
from neuronserve.server.config.formats import Quantization, StackName
from neuronserve.server.device.prices import PriceBasis
from neuronserve.server.errors import SettingsError
from neuronserve.server.settings.base import File, Numbers, ReportSettings, Texts, slice_of, split_commas
from neuronserve.server.settings.calibration import TimeSettings
from neuronserve.server.settings.catalog import CatalogSettings
from neuronserve.server.workload.arrivals import Arrivals
from neuronserve.server.workload.context import TooLong, fit_context
from neuronserve.server.workload.length_table import read_lengths
from neuronserve.server.workload.lengths import LengthRange
from neuronserve.server.workload.slo import Slo
from neuronserve.server.workload.synthetic import SyntheticWorkload
from neuronserve.server.workload.traces import read_trace
from neuronserve.server.workload.workload import Workload

DECODER_ONLY = (  # settings of a plan that mean nothing for an encoder
    *("output_tokens", "tpot_ms", "ttft_p95_ms", "ttft_p99_ms", "tpot_p95_ms", "tpot_p99_ms", "max_model_len"),
    *("pipeline_parallel_sizes", "stack", "trace", "chip_watts", "check", "gpus", "picture", "emit", "emit_row"),
    *sorted(DeploymentSettings.model_fields.keys() - CatalogSettings.model_fields.keys()),
)
WHICH_MODEL = (
    "checkpoint directory, config.json, GGUF file, or a public model such as llama-3.1-8b (docs/reference/models.md); "
    "llama-1b and qwen-0.5b are shapes of random checkpoints"
)
Limit = Annotated[float | None, Field(gt=0, allow_inf_nan=False)]


class _PlannerSettings(TimeSettings, ReportSettings):
    model: CliPositionalArg[str] = Field("llama-8b", description=WHICH_MODEL)
    price_basis: PriceBasis = Field("on_demand", description="price of the catalogue to use")
    device_memory_utilization: float = Field(0.9, gt=0, le=1, description="share of device memory that may be used")
    stack: StackName | None = Field(
        None, description="serving software on the part (default: what one would run on it today)"
    )
    trace: File = Field(None, description="trace file whose requests take the place of those described here")

    @property
    def recorded(self) -> Workload | None:
        """The requests of the trace file. Raises SettingsError for one that is none."""
        return read_trace(self.trace) if self.trace else None


class PlanSettings(DeploymentSettings, _PlannerSettings):
    """Settings of `neuronserve plan`. A flag that differs from the name of the option is its alias."""

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
    chip_watts: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="power of one chip, for tokens per joule (default: not known)"
    )
    check: CliToggleFlag[bool] = Field(False, description="simulate the chosen configuration and compare")
    gpus: CliToggleFlag[bool] = Field(False, description="print published GPU figures of models of this size beside")
    wide: CliToggleFlag[bool] = Field(False, description="all columns of the tables, and what cannot be had")
    picture: File = Field(None, description="write the Pareto front to this .html or .png file")
    emit: File = Field(
        None, description="write what deploys the first row into this directory: vLLM, Helm, AWS, a load test"
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
        """Where the files go, if anywhere."""
        return None if self.emit is None else Emission(self.emit, self.emit_row)

    @property
    def is_encoder(self) -> bool:
        """Whether requests are one pass without tokens that follow. Raises SettingsError for an unknown model."""
        return resolve_shape(self.model).is_encoder

    @property
    def encoder_options(self) -> PlanOptions:
        """The planner's slice for an encoder. Raises SettingsError for what was given and means nothing for one."""
        fields = type(self).model_fields
        given = [str(fields[name].validation_alias or name) for name in DECODER_ONLY if name in self.model_fields_set]
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise SettingsError(f"{flags}: {self.model} is an encoder: a request is one pass, and no tokens follow")
        return self.options(None)

    @property
    def view(self) -> View:
        """What is shown."""
        return slice_of(View, self)

    def options(self, trace: Workload | None) -> PlanOptions:
        """The planner's slice, with the lengths of a trace over those given."""
        options = slice_of(
            PlanOptions,
            self,
            regions=self.regions,
            request_rate=1.0 if self.request_rate is None else self.request_rate,
            **{name: _seconds(getattr(self, name.removesuffix("_s") + "_ms")) for name in LIMITS},
        )
        return options if trace is None else with_trace(options, trace, self.request_rate)


class SimulateSettings(_PlannerSettings):
    """Settings of `neuronserve simulate`. Lengths are a number, or a range such as 128:1024."""

    model: CliPositionalArg[str] = Field("llama-3.2-1b", description=WHICH_MODEL)  # fits a core, as the degree has it
    device: str = Field("inf2.xlarge", description="instance to simulate")
    tensor_parallel_size: int = Field(TENSOR_PARALLEL_SIZE, ge=1, le=64, description="NeuronCores of one engine")
    data_parallel_size: int = Field(1, ge=1, description="engines on each instance")
    replicas: int = Field(
        1, ge=1, le=MAX_REPLICAS, description=f"instances, at most {MAX_REPLICAS}; with --autoscale those at the start"
    )
    max_model_len: int = Field(4096, ge=2, description="longest context in tokens")
    max_num_seqs: int = Field(MAX_NUM_SEQS, ge=1, description="slots that decode is compiled for")
    quantization: Quantization | None = Field(None, description="quantized weights (default: bfloat16)")
    routing: Routing = Field("least-loaded", description="which engine gets a request")
    autoscale: AutoscalePolicy = Field(
        "fixed", description="replicas follow the load as a HorizontalPodAutoscaler (reactive) or KEDA has them"
    )
    min_replicas: int = Field(1, ge=0, description="with --autoscale: fewest replicas; 0 for keda alone")
    max_replicas: int = Field(100, ge=1, le=MAX_REPLICAS, description=f"most replicas, at most {MAX_REPLICAS}")
    target_utilization: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="open requests for each slot (default of reactive: 0.8)"
    )
    target_waiting: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="waiting requests for each replica (default of keda: 4)"
    )
    startup_delay_s: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="from launch to ready (default: 75, and 1 for each 0.34 GB of weights)",
    )
    scale_down_stabilization_s: float = Field(
        300.0, ge=0, allow_inf_nan=False, description="replicas go once fewer were enough for so long"
    )
    polling_interval_s: float = Field(
        30.0, gt=0, allow_inf_nan=False, description="keda asks so often whether there is any activity"
    )
    cooldown_s: float = Field(
        300.0, ge=0, allow_inf_nan=False, description="keda goes to 0 replicas after so long without activity"
    )
    num_prompts: int = Field(1000, ge=1, description="synthetic requests")
    request_rate: float = Field(1.0, gt=0, description="synthetic requests a second; inf for all at once")
    burstiness: float = Field(1.0, gt=0, description="shape of the gaps: 1 is Poisson, below 1 is burstier")
    random_input_len: str = Field("1024", description="prompt tokens of a synthetic request")
    random_output_len: str = Field("256", description="generated tokens of a synthetic request")
    lengths: File = Field(
        None, description="CSV of num_prefill_tokens and num_decode_tokens that lengths are drawn from instead"
    )
    too_long: TooLong = Field(
        "cut", description="requests beyond --max-model-len: their prompts are cut, or they are dropped or refused"
    )
    max_concurrency: int | None = Field(None, ge=1, description="requests open at once (default: no limit)")
    seed: int = Field(0, ge=0, description="of the synthetic requests")
    ttft_ms: float | None = Field(None, gt=0, description="a good request's limit (default: none)")
    tpot_ms: float | None = Field(None, gt=0, description="a good request's limit (default: none)")
    e2el_ms: float | None = Field(None, gt=0, description="a good request's limit (default: none)")

    @property
    def synthetic(self) -> SyntheticWorkload:
        """What the requests are drawn from when no trace is given."""
        return slice_of(
            SyntheticWorkload,
            self,
            num_requests=self.num_prompts,
            arrivals=Arrivals(self.request_rate, self.burstiness),
            input_len=LengthRange.parse(self.random_input_len, "random_input_len"),
            output_len=LengthRange.parse(self.random_output_len, "random_output_len"),
            lengths=None if self.lengths is None else read_lengths(self.lengths),
        )

    @model_validator(mode="after")
    def _one_source_of_lengths(self) -> Self:
        if self.trace is not None and self.lengths is not None:
            raise ValueError("--trace has lengths of its own: it and --lengths cannot both be given")
        return self

    @property
    def workload(self) -> Workload:
        """The requests, as far as they fit. Raises SettingsError for what describes none."""
        recorded = self.recorded
        asked = self.synthetic.generate() if recorded is None else recorded
        return fit_context(asked, self.max_model_len, self.too_long)

    @property
    def options(self) -> SimulationOptions:
        """The simulator's slice, with the requests. Raises SettingsError for what describes none."""
        return slice_of(
            SimulationOptions,
            self,
            model=resolve_decoder(self.model),
            instance=self.device,
            workload=self.workload,
            slo=slice_of(Slo, self),
            autoscaling=slice_of(Autoscaling, self),
        )


class CalibrateSettings(ReportSettings):
    """Settings of `neuronserve calibrate`."""

    data: File = Field(None, description="CSV with rows to fit")
    check_file: File = Field(None, description="CSV with rows to hold the stored calibration against; fits nothing")
    stack: StackName | None = Field(None, description="with --check: compare load tests of this software alone")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.data is None) == (self.check_file is None):
            raise ValueError("one of --data and --check is needed, and not both")
        if self.data is not None and self.stack is not None:
            raise ValueError(f"--stack is {self.stack}: it goes with --check, a fit takes the load tests of all")
        return self

    @property
    def rows(self) -> Path:
        """The one that is given."""
        return self.data or self.check_file or Path()


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3
