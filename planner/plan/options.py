"""Options of a plan: the workload, its limits, and the instances and degrees to search. Checked here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, get_args

from ...server.config.formats import StackName
from ...server.cost.speculation import METHODS, Speculation, SpeculativeMethod
from ...server.cost.stacks import STACKS, USUAL_STACKS, Stack, default_stack
from ...server.device.buckets import SMALLEST_BUCKET
from ...server.device.instances import Instance
from ...server.device.prices import PRICE_BASES, PriceBasis
from ...server.errors import SettingsError
from ...server.models.spec import ModelSpec
from ...server.placement.cache_layout import KV_CELL_BYTES
from .bounds import MAX_BATCH, MAX_CONFIDENCE, MAX_RATE, MAX_TOKENS, MIN_CONFIDENCE, MIN_RATE
from .times import Limit
from .weight_types import COMPARED, DTYPES, WeightDtype

LIMITS = {  # fields of PlanOptions, and the figures that they limit
    "ttft_s": Limit("TTFT", 0.0),
    "tpot_s": Limit("TPOT", 0.0),
    "ttft_p95_s": Limit("TTFT", 0.0, 0.95),
    "ttft_p99_s": Limit("TTFT", 0.0, 0.99),
    "tpot_p95_s": Limit("TPOT", 0.0, 0.95),
    "tpot_p99_s": Limit("TPOT", 0.0, 0.99),
}
TextTask = Literal["embed", "rerank", "classify"]
SPECULATION = ("num_speculative_tokens", "acceptance_rate")  # fields of PlanOptions
KVDtype = Literal["bfloat16", "fp8"]  # types of the cache in Neuron's own software
MAX_GUESSES, MAX_LORAS, MAX_LORA_RANK = 64, 4096, 512


def bucket(tokens: int, longest: int) -> int:
    """Return the smallest automatic bucket that holds `tokens`, at most `longest`."""
    size = SMALLEST_BUCKET
    while size < tokens:
        size *= 2
    return min(size, longest)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of one plan. Raises SettingsError with the value and the limit for impossible values."""

    model: str
    input_tokens: int = 1024
    output_tokens: int = 256
    request_rate: float = 1.0  # requests a second, Poisson
    ttft_s: float | None = None  # limit of the mean; None = no limit
    tpot_s: float | None = None
    ttft_p95_s: float | None = None  # limits of the 95th and 99th percentiles
    ttft_p99_s: float | None = None
    tpot_p95_s: float | None = None
    tpot_p99_s: float | None = None
    usd_per_hour: float | None = None  # the most that all instances together may cost
    devices: tuple[str, ...] = ()  # () = every instance of the catalogue
    tensor_parallel_sizes: tuple[int, ...] = ()  # () = every degree that an instance allows
    pipeline_parallel_sizes: tuple[int, ...] = (1,)  # stages; more than one is extrapolated
    dtypes: tuple[WeightDtype, ...] = COMPARED  # of the weights; activations and KV are bfloat16
    max_model_len: int | None = None  # positions that a slot is compiled for; None = bucket of input + output
    stack: StackName | None = None  # serving software; None: the usual one of each instance today
    max_batch: int = 256  # the largest batch with measurements behind it
    device_memory_utilization: float = 0.92  # as the server's default
    price_basis: PriceBasis = "on_demand"  # candidates are sorted by this price
    chip_watts: float | None = None  # power of one serving chip; no figure is published
    grid_g_per_kwh: float | None = None  # grams of CO2 equivalent for a kilowatt-hour
    confidence: float = 0.5  # quantile of the step times at which rows are sized; 0.5: as predicted
    regions: tuple[str, ...] = ()  # the cheapest region counts; () = the region in force
    logical_nc_configs: tuple[int, ...] = ()  # physical cores in a logical one; () = as each chip comes
    instances_per_replica: tuple[int, ...] = ()  # () = 1, or more if no single instance holds the model
    save_sharded_checkpoint: bool = False  # weights were sharded on another host: loading reads one shard after another
    kv_cache_dtype: KVDtype = "bfloat16"
    speculative_method: SpeculativeMethod = "draft_model"  # of a plan with guesses
    speculative_model: str | None = None  # draft, in bfloat16; None for methods with a head of the model's own sizes
    num_speculative_tokens: int | None = None  # guesses of the draft in a step
    acceptance_rate: float | None = None  # share of guesses that are right if all guesses before are
    max_loras: int = 0  # adapters on the cores
    max_lora_rank: int = 16
    task: TextTask = "embed"  # of an encoder: whether a pass returns vectors or scores

    def __post_init__(self) -> None:
        for name, most in (("input_tokens", MAX_TOKENS), ("output_tokens", MAX_TOKENS), ("max_batch", MAX_BATCH)):
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise SettingsError(f"{name} is {value}: from 1 to {most} is possible")
        if not MIN_RATE <= self.request_rate <= MAX_RATE:
            raise SettingsError(f"request_rate is {self.request_rate}: from {MIN_RATE:g} to {MAX_RATE:g} is possible")
        for name in (*LIMITS, "usd_per_hour", "chip_watts", "grid_g_per_kwh"):
            limit = getattr(self, name)
            if limit is not None and not (isfinite(limit) and limit > 0):
                raise SettingsError(f"{name} is {limit}: a finite number above 0 is needed")
        if not self.pipeline_parallel_sizes or min(self.pipeline_parallel_sizes) < 1:
            raise SettingsError(f"pipeline_parallel_sizes is {self.pipeline_parallel_sizes}: numbers of at least 1")
        if not 0 < self.device_memory_utilization <= 1:
            raise SettingsError(f"device_memory_utilization is {self.device_memory_utilization}: above 0, at most 1")
        if self.price_basis not in PRICE_BASES:
            raise SettingsError(f"price_basis is {self.price_basis!r}: one of {', '.join(PRICE_BASES)}")
        unknown = [dtype for dtype in self.dtypes if dtype not in DTYPES]
        if unknown or not self.dtypes:
            raise SettingsError(f"dtypes is {', '.join(unknown) or 'empty'}: some of {', '.join(DTYPES)}")
        self._check_rest()

    def _check_rest(self) -> None:
        if self.stack is not None and self.stack not in STACKS:
            raise SettingsError(f"stack is {self.stack!r}: one of {', '.join(STACKS)}")
        if self.max_model_len is not None and not self.total_tokens <= self.max_model_len <= MAX_TOKENS:
            raise SettingsError(
                f"max_model_len is {self.max_model_len}: input_tokens + output_tokens is {self.total_tokens}, "
                f"at most {MAX_TOKENS} is possible"
            )
        for name in ("logical_nc_configs", "instances_per_replica"):
            if any(number < 1 for number in getattr(self, name)):
                raise SettingsError(f"{name} is {getattr(self, name)}: numbers of at least 1")
        if self.grid_g_per_kwh is not None and self.chip_watts is None:
            raise SettingsError(f"grid_g_per_kwh is {self.grid_g_per_kwh}: it needs chip_watts, which is not given")
        if not MIN_CONFIDENCE <= self.confidence <= MAX_CONFIDENCE:
            raise SettingsError(
                f"confidence is {self.confidence}: from {MIN_CONFIDENCE} to {MAX_CONFIDENCE} is possible"
            )
        self._check_features()

    def _check_features(self) -> None:
        if self.kv_cache_dtype not in get_args(KVDtype):
            raise SettingsError(f"kv_cache_dtype is {self.kv_cache_dtype!r}: one of {', '.join(get_args(KVDtype))}")
        self._check_speculation()
        for name, least, most in (("max_loras", 0, MAX_LORAS), ("max_lora_rank", 1, MAX_LORA_RANK)):
            if not least <= getattr(self, name) <= most:
                raise SettingsError(f"{name} is {getattr(self, name)}: from {least} to {most} is possible")

    def _check_speculation(self) -> None:
        method = self.speculative_method
        if method not in METHODS:
            raise SettingsError(f"speculative_method is {method!r}: one of {', '.join(METHODS)}")
        has_head, is_lookup = METHODS[method].head_layers > 0, METHODS[method].is_lookup
        needed = SPECULATION if has_head or is_lookup else ("speculative_model", *SPECULATION)
        given = [getattr(self, name) is not None for name in needed]
        if (has_head or is_lookup) and self.speculative_model is not None:
            own = "no model" if is_lookup else "a head of the sizes of the model itself"
            raise SettingsError(f"speculative_model is {self.speculative_model!r}: {method} has {own}")
        if (any(given) or has_head or is_lookup) and not all(given):
            raise SettingsError(f"{', '.join(needed)}: speculative decoding needs all of them, or none is given")
        if self.num_speculative_tokens is not None and not 1 <= self.num_speculative_tokens <= MAX_GUESSES:
            raise SettingsError(
                f"num_speculative_tokens is {self.num_speculative_tokens}: from 1 to {MAX_GUESSES} is possible"
            )
        if self.acceptance_rate is not None and not 0 <= self.acceptance_rate <= 1:
            raise SettingsError(f"acceptance_rate is {self.acceptance_rate}: from 0 to 1 is possible")

    @property
    def speculation(self) -> Speculation | None:
        """Speculation by the draft model; None without one."""
        if self.num_speculative_tokens is None or self.acceptance_rate is None:
            return None
        return Speculation(self.num_speculative_tokens, self.acceptance_rate, self.speculative_method)

    @property
    def kv_bytes(self) -> float:
        """Bytes of one element of the KV cache."""
        return KV_CELL_BYTES[self.kv_cache_dtype]

    @property
    def lora_rank(self) -> int:
        """Rank of the adapter of each slot; 0 without adapters."""
        return self.max_lora_rank if self.max_loras else 0

    @property
    def features(self) -> tuple[str, ...]:
        """Features in use beside plain decoding, by their names in support.json."""
        used = {
            "speculation": self.speculation is not None,
            "lora": self.max_loras > 0,
            "kv_cache_quantization": self.kv_cache_dtype != "bfloat16",
        }
        return tuple(name for name, is_used in used.items() if is_used)

    @property
    def total_tokens(self) -> int:
        """Tokens of one request, in and out."""
        return self.input_tokens + self.output_tokens

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """Serving software of all instances: the given one, or the usual one of each chip."""
        return USUAL_STACKS if self.stack is None else (STACKS[self.stack],)

    def stack_on(self, part: Instance) -> Stack:
        """Return the serving software on `part`."""
        return default_stack(part.chip.name) if self.stack is None else STACKS[self.stack]

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits on times that are given."""
        given = ((limit, getattr(self, name)) for name, limit in LIMITS.items())
        return tuple(replace(limit, seconds=seconds) for limit, seconds in given if seconds is not None)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Positions that the graphs are compiled for."""

    prefill: int  # the longest graph of prompts
    decode: int  # the longest of each slot

    @classmethod
    def of(cls, options: PlanOptions, model: ModelSpec) -> Buckets:
        """Return the buckets. Raises SettingsError if the model has fewer positions than a request or a slot needs."""
        needed = options.max_model_len or options.total_tokens
        if needed > model.max_position:
            name = "max_model_len" if options.max_model_len else "input_tokens + output_tokens"
            raise SettingsError(f"{name} is {needed}: {options.model} has {model.max_position} positions")
        return cls.holding(options, model, options.total_tokens)

    @classmethod
    def holding(cls, options: PlanOptions, model: ModelSpec, longest: int) -> Buckets:
        """Return buckets for requests of at most `longest` tokens, for which the model has positions.

        A server compiles graphs for prompts up to the whole length too, and the memory of the longest is taken.
        """
        length = options.max_model_len or bucket(longest, model.max_position)
        return cls(prefill=length, decode=length)
