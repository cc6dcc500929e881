"""Settings of `neuronserve simulate`."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import CliPositionalArg

from ...server.config import MAX_NUM_SEQS, TENSOR_PARALLEL_SIZE
from ...server.config.disaggregation import Disaggregation
from ...server.config.formats import Quantization, SchedulingPolicy
from ...server.errors import SettingsError
from ...server.route.rules import PROBE_S, SILENCE_S
from ...server.settings.base import File, Numbers, slice_of
from ...server.settings.model import Json
from ...server.settings.speculation import read_speculation
from ...workload.arrivals import Arrivals
from ...workload.lengths import LengthRange, read_lengths
from ...workload.slo import Slo
from ...workload.synthetic import SyntheticWorkload
from ...workload.workload import TooLong, Workload, fit_context
from ..model_names import resolve_decoder
from ..simulate.autoscaling import MAX_REPLICAS, AutoscalePolicy, Autoscaling
from ..simulate.failures import REPLACEMENT_DELAY_S, Failures, ZoneOutage
from ..simulate.options import SimulationOptions
from ..simulate.routing import Routing
from ..simulate.sampling import Sample
from .base import WHICH_MODEL, PlannerSettings


class SimulateSettings(PlannerSettings):
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
    context_encoding_buckets: Numbers = Field(
        (), description="compiled prompt lengths, with commas (default: those of --stack)"
    )
    token_generation_buckets: Numbers = Field(
        (), description="compiled context lengths of decode, with commas (default: those of --stack)"
    )
    quantization: Quantization | None = Field(None, description="quantized weights (default: bfloat16)")
    max_num_batched_tokens: int | None = Field(
        None, ge=1, description="tokens computed in one step (default: prompts of 8192, or all if encoded together)"
    )
    scheduling_policy: SchedulingPolicy = Field(
        "fair", description="who is served next; slo takes --ttft-ms and --tpot-ms as objectives"
    )
    step_time_target_ms: Annotated[float, Field(gt=0)] | Literal["auto"] | None = Field(
        None, description="milliseconds of a step that mixes prompts and decodes (default: none)"
    )
    disaggregate: str | None = Field(
        None,
        description="prefill:P,decode:D: P instances compute prompts, D copy their KV and decode, beside as many that "
        "do both; with --data-parallel-size P + D, engines of one instance",
    )
    speculative_config: Json = Field(
        None, description="as serve has it, with synthetic_acceptance_length: mean tokens of a step with drafts"
    )
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
        description="seconds from launch to ready (default: 75, and 1 for each 0.34 GB of weights)",
    )
    scale_down_stabilization_s: float = Field(
        300.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds for which fewer replicas must be enough before some are removed",
    )
    polling_interval_s: float = Field(
        30.0, gt=0, allow_inf_nan=False, description="seconds between keda's checks for activity"
    )
    cooldown_s: float = Field(
        300.0, ge=0, allow_inf_nan=False, description="seconds without activity after which keda goes to 0 replicas"
    )
    compile_at_start: bool = Field(
        False, description="a start compiles the model too, as without a compile cache, in the cost model's time"
    )
    node_mtbf_h: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="mean hours until an instance fails (default: never)"
    )
    spot_share: float = Field(0.0, ge=0, le=1, description="share of instances on spot, at the catalogue's price")
    spot_mtbf_h: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="mean hours until a spot instance is interrupted"
    )
    num_zones: int = Field(3, ge=1, le=100, description="zones over which instances are spread")
    zone_outage: str | None = Field(
        None,
        description="START:SECONDS[:ZONE]: all instances of a zone (default: 0) fail at once, and none starts there",
    )
    detection_s: float = Field(
        SILENCE_S + PROBE_S / 2,
        ge=0,
        allow_inf_nan=False,
        description="seconds until the router finds a failed instance",
    )
    replacement_delay_s: float = Field(
        REPLACEMENT_DELAY_S, ge=0, allow_inf_nan=False, description="seconds until a failed instance is replaced"
    )
    sample: str | None = Field(
        None,
        description="SLICES/ALL, such as 4/1000: simulate that many of ALL equal parts of replicas and requests, each "
        "with a router of its own, and give the interval of each figure",
    )
    num_prompts: int = Field(1000, ge=1, description="synthetic requests")
    request_rate: float = Field(1.0, gt=0, description="synthetic requests a second; inf for all at once")
    day: float = Field(
        0.0, ge=0, lt=1, description="share by which the rate rises above its mean by day and falls by night"
    )
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
    seed: int = Field(0, ge=0, description="seed of the synthetic requests")
    ttft_ms: float | None = Field(None, gt=0, description="a good request's limit (default: none)")
    tpot_ms: float | None = Field(None, gt=0, description="a good request's limit (default: none)")
    e2el_ms: float | None = Field(None, gt=0, description="a good request's limit (default: none)")

    @property
    def synthetic(self) -> SyntheticWorkload:
        """Return the distribution of requests that is used without a trace."""
        return slice_of(
            SyntheticWorkload,
            self,
            num_requests=self.num_prompts,
            arrivals=Arrivals(self.request_rate, self.burstiness, day=self.day),
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
        """Return the requests that fit. Raises SettingsError for a workload without requests."""
        recorded = self.recorded
        workload = self.synthetic.generate() if recorded is None else recorded
        return fit_context(workload, self.max_model_len, self.too_long)

    @property
    def options(self) -> SimulationOptions:
        """Return the simulator's options with the requests. Raises SettingsError for a workload without requests."""
        divided = None if self.disaggregate is None else Disaggregation.parse(self.disaggregate)
        is_implied = divided and "replicas" not in self.model_fields_set and self.data_parallel_size != divided.total
        return slice_of(
            SimulationOptions,
            self,
            model=resolve_decoder(self.model),
            instance=self.device,
            workload=self.workload,
            prefill_buckets=self.context_encoding_buckets or None,
            decode_buckets=self.token_generation_buckets or None,
            speculation=read_speculation(self.speculative_config),
            slo=slice_of(Slo, self),
            autoscaling=slice_of(Autoscaling, self),
            failures=slice_of(Failures, self, zone_outage=self.zone_outage and ZoneOutage.parse(self.zone_outage)),
            disaggregate=divided,
            replicas=divided.total if divided and is_implied else self.replicas,
        )

    @property
    def slices(self) -> tuple[Sample, Iterator[SimulationOptions]] | None:
        """Return the sample with the options of each of its slices; None without one.

        Raises SettingsError for what cannot be divided: a Poisson process can, a recorded or bursty one cannot.
        """
        if self.sample is None:
            return None
        sample = Sample.parse(self.sample)
        if self.trace is not None or self.burstiness != 1:
            raise SettingsError(f"sample is {self.sample}: it is of arrivals with burstiness 1, and not of a trace")
        return sample, (self._slice(sample, number) for number in range(sample.num_slices))

    def _slice(self, sample: Sample, number: int) -> SimulationOptions:
        limits = () if self.autoscale == "fixed" else ("min_replicas", "max_replicas")
        counts = ("replicas", "num_prompts", "max_concurrency", *limits)
        shares = {name: sample.share(name, count) for name in counts if (count := getattr(self, name)) is not None}
        others = {"request_rate": self.request_rate / sample.num_all, "seed": sample.seed(self.seed, number)}
        return self.model_copy(update=shares | others).options
