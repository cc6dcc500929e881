"""Options of a simulation: model, deployment, limits, workload, prices. They are checked and resolved here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from ...server.config import MAX_NUM_SEQS, TENSOR_PARALLEL_SIZE, CacheConfig, SchedulerConfig
from ...server.config.disaggregation import Disaggregation
from ...server.config.formats import Quantization, SchedulingPolicy, StackName
from ...server.config.speculation import SpeculationConfig
from ...server.cost.compile_time import compile_time
from ...server.cost.shape import STORED_BYTES, stored_dtype
from ...server.cost.stacks import STACKS, Stack, default_stack
from ...server.cost.work import CURRENT_SDK
from ...server.device.catalog import Instance, instance
from ...server.device.prices import PriceBasis
from ...server.errors import SettingsError
from ...server.models.spec import ModelSpec
from ...server.models.tensors import num_params
from ...server.placement.fit import budget_bytes, require_fit
from ...server.placement.footprint import Footprint, ServingShape, StepLimits
from ...server.placement.state_layout import num_state_slots
from ...server.scheduler.batching import POLICIES
from ...workload.slo import Slo
from ...workload.workload import Workload
from .autoscaling import MAX_REPLICAS, Autoscaling
from .failures import Failures
from .routing import ROUTINGS, Routing

LONGEST_CHUNK = 8192  # default tokens of prompts in one step


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """One deployment under one workload. `replicas` instances, each with `data_parallel_size` groups of TP cores."""

    model: ModelSpec
    instance: str
    workload: Workload
    tensor_parallel_size: int = TENSOR_PARALLEL_SIZE
    data_parallel_size: int = 1  # groups on each instance
    replicas: int = 1  # instances; with autoscaling those at the start, within its limits
    max_model_len: int = 4096
    max_num_seqs: int = MAX_NUM_SEQS  # slots that decode is compiled for
    max_num_batched_tokens: int | None = None  # None: LONGEST_CHUNK of prompts, or all if they are encoded together
    max_num_queued_reqs: int = 1024  # of each group
    block_size: int = 32
    num_blocks: int | None = None  # None: as many as the device memory holds
    enable_prefix_caching: bool = True
    device_memory_utilization: float = 0.92
    quantization: Quantization | None = None
    prefill_buckets: tuple[int, ...] | None = None  # None: those of the stack
    decode_buckets: tuple[int, ...] | None = None  # None: those of the stack
    stack: StackName | None = None  # serving software; None: the usual one of the instance today
    sdk: int = CURRENT_SDK
    scheduling_policy: SchedulingPolicy = "fair"
    step_time_target_ms: float | Literal["auto"] | None = None
    speculation: SpeculationConfig | None = None  # with a synthetic acceptance: a simulation has no texts
    max_concurrency: int | None = None  # open requests over all instances; None: requests are sent when they arrive
    routing: Routing = "least-loaded"
    autoscaling: Autoscaling = field(default_factory=Autoscaling)
    failures: Failures = field(default_factory=Failures)
    slo: Slo = field(default_factory=Slo)
    price_basis: PriceBasis = "on_demand"
    usd_per_hour: float | None = None  # of one instance; None: the catalogue's
    disaggregate: Disaggregation | None = None  # of replicas, or of the engines of one; None: each does all
    step_by_step: bool = False  # run every step in the scheduler, even if steps are known to be equal

    @property
    def device(self) -> Instance:
        """The instance. Raises DeviceError for an unknown name."""
        return instance(self.instance)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the checkpoint that an engine loads."""
        return int(num_params(self.model) * STORED_BYTES[self.quantization_dtype])

    @property
    def quantization_dtype(self) -> str:
        """Weight type of the cost model, which knows only the storage size: one name for all 8-bit types."""
        return stored_dtype(self.quantization, "bfloat16")

    @property
    def scheduler(self) -> SchedulerConfig:
        tokens, policy = self.max_num_batched_tokens, POLICIES[self.serving_stack.batching]
        if tokens is None:
            is_whole = policy.waiting_ratio > 0  # all waiting prompts are encoded together, of any length
            prompts = max(LONGEST_CHUNK, self.max_num_seqs * self.max_model_len) if is_whole else LONGEST_CHUNK
            tokens = prompts + self.max_num_seqs
        return SchedulerConfig(
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=tokens,
            max_num_queued_reqs=self.max_num_queued_reqs,
            batching=self.serving_stack.batching,
            max_prompt_chunk=self.compiled_prompts[-1],
            policy=self.scheduling_policy,
            step_time_target_ms=self.step_time_target_ms,
            speculation=self.speculation,
        )

    @property
    def hourly_usd(self) -> float:
        """Price of one instance. Raises DeviceError if it is not known."""
        if self.usd_per_hour is not None:
            return self.usd_per_hour
        return self.device.price(self.price_basis).usd

    @property
    def spot_hourly_usd(self) -> float:
        """Price of one instance on spot. Raises DeviceError if it is not known."""
        return self.device.price("spot").usd if self.failures.spot_share else self.hourly_usd

    @property
    def startup_ns(self) -> int:
        """Nanoseconds from the launch of a replica until it takes requests."""
        num_graphs = len(self.compiled_prompts) + len(self.compiled_contexts)
        compile_s = compile_time(self.model, self.tensor_parallel_size, num_graphs).seconds
        return self.autoscaling.startup_ns(self.weight_bytes, compile_s)

    @property
    def serving_stack(self) -> Stack:
        return default_stack(self.device.chip.name) if self.stack is None else STACKS[self.stack]

    @property
    def compiled_prompts(self) -> tuple[int, ...]:
        """Ascending lengths that prompts are padded to, up to max_model_len."""
        return self._buckets(self.prefill_buckets, self.serving_stack.prompt_buckets(self.max_model_len))

    @property
    def compiled_contexts(self) -> tuple[int, ...]:
        """Ascending lengths that decode steps read, up to max_model_len."""
        return self._buckets(self.decode_buckets, self.serving_stack.step_buckets(self.max_model_len))

    def _buckets(self, given: tuple[int, ...] | None, automatic: tuple[int, ...]) -> tuple[int, ...]:
        return automatic if given is None else tuple(sorted({*given, self.max_model_len}))

    def check(self) -> None:
        """Raise SettingsError or DeviceError for a deployment that cannot be served."""
        self._check_numbers()
        if len(self.workload) == 0:
            raise SettingsError("the workload holds no request")
        for name, buckets in (("prefill_buckets", self.prefill_buckets), ("decode_buckets", self.decode_buckets)):
            if any(not 1 <= length <= self.max_model_len for length in buckets or ()):
                raise SettingsError(f"{name} are {buckets}: each is 1 to max_model_len {self.max_model_len}")
        self.device.check_groups(self.tensor_parallel_size, self.data_parallel_size)
        if self.max_model_len > self.model.max_position:
            raise SettingsError(
                f"max_model_len is {self.max_model_len}: this model takes {self.model.max_position} tokens"
            )
        tokens = self.scheduler.max_num_batched_tokens
        if tokens < self.max_num_seqs:
            raise SettingsError(
                f"max_num_batched_tokens is {tokens}: it must be at least max_num_seqs {self.max_num_seqs}"
            )
        if self.routing not in ROUTINGS:
            raise SettingsError(f"routing is {self.routing!r}: one of {', '.join(ROUTINGS)}")
        self.autoscaling.check()
        self.failures.check()
        if self.failures.is_set and self.disaggregate is not None:
            raise SettingsError(f"disaggregate is {self.disaggregate}: failures are not simulated with it")
        if self.speculation is not None and self.speculation.synthetic_acceptance_length is None:
            raise SettingsError(
                "speculative_config has no synthetic_acceptance_length: a simulation has no texts to draft from"
            )
        _ = self.hourly_usd, self.spot_hourly_usd

    def _check_numbers(self) -> None:
        for name in (
            "tensor_parallel_size",
            "data_parallel_size",
            "replicas",
            "max_num_seqs",
            "max_num_queued_reqs",
            "block_size",
        ):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.replicas > MAX_REPLICAS:
            raise SettingsError(f"replicas is {self.replicas}: a simulation holds at most {MAX_REPLICAS}")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise SettingsError(f"max_concurrency is {self.max_concurrency}: it must be at least 1")
        if self.max_model_len < 2:
            raise SettingsError(f"max_model_len is {self.max_model_len}: it must be at least 2")
        if not 0 < self.device_memory_utilization <= 1:
            raise SettingsError(
                f"device_memory_utilization is {self.device_memory_utilization}: it is above 0, at most 1"
            )
        if self.usd_per_hour is not None and not 0 <= self.usd_per_hour < float("inf"):
            raise SettingsError(f"usd_per_hour is {self.usd_per_hour}: it must be at least 0 and finite")

    def resolve_cache(self) -> CacheConfig:
        """Return the KV cache of one group: `num_blocks`, or all free memory, at most twice what its slots use.

        Raises DeviceError if the instance does not allow the TP, DeviceMemoryError if the model does not fit, and
        SettingsError for an impossible `num_blocks`.
        """
        footprint, held, utilization = self.footprint, self.device, self.device_memory_utilization
        most = footprint.max_blocks(budget_bytes(held, utilization))
        num_blocks = self.num_blocks
        if num_blocks is None:
            num_blocks = min(most, 2 * self.max_num_seqs * footprint.min_blocks)
        elif not 2 <= num_blocks <= most:
            raise SettingsError(f"num_blocks is {num_blocks}: this deployment holds 2 to {most}")
        slots = num_state_slots(self.model, self.max_num_seqs, self._num_drafts)
        cache = footprint.groups.cache(num_blocks, self.enable_prefix_caching, slots)
        return replace(cache, max_chunk=max(cache.max_chunk, self.scheduler.max_chunk))

    @property
    def _num_drafts(self) -> int:
        return 0 if self.speculation is None else self.speculation.most_drafts(self.max_num_seqs)

    @property
    def footprint(self) -> Footprint:
        """Memory of one group. Raises as `resolve_cache`."""
        longest = min(max(self.prefill_buckets or (self.max_model_len,)), self.scheduler.max_num_batched_tokens)
        rows, drafts = self.max_num_seqs + self._num_drafts, self._num_drafts
        limits = StepLimits(max(longest, rows), rows, num_workers=1, num_drafts=drafts)  # prompts go one by one
        shape = ServingShape(
            "bfloat16",
            self.max_model_len,
            self.block_size,
            limits,
            self.quantization,
            fills_first_core=self.serving_stack.fills_first_core,
        )
        return require_fit(self.model, self.device, self.tensor_parallel_size, shape, self.device_memory_utilization)
