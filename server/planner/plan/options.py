"""Options of a plan: the workload, its limits, and the parts and degrees to search. Checks, never searches."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import Literal, get_args

from server.config import Batching
from server.device.buckets import SMALLEST_BUCKET
from server.device.prices import PRICE_BASES, PriceBasis
from server.errors import SettingsError
from server.models.spec import ModelSpec

WeightDtype = Literal["bfloat16", "int8", "fp8"]
DTYPES: tuple[WeightDtype, ...] = get_args(WeightDtype)
MAX_TOKENS = 1 << 24
MAX_BATCH = 4096
MIN_RATE, MAX_RATE = 1e-6, 1e9  # requests a second: beyond, figures stop being finite or meaningful


def bucket(tokens: int, longest: int) -> int:
    """The smallest compiled bucket that holds `tokens`: an automatic bucket, at most `longest`."""
    size = SMALLEST_BUCKET
    while size < tokens:
        size *= 2
    return min(size, longest)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of one plan. Raises SettingsError, naming the value and the limit, for values that admit no plan."""

    model: str
    input_tokens: int = 1024
    output_tokens: int = 256
    request_rate: float = 1.0  # requests a second, Poisson
    ttft_s: float | None = None  # limit of the mean; None = no limit
    tpot_s: float | None = None
    devices: tuple[str, ...] = ()  # () = every instance of the catalogue
    tensor_parallel_sizes: tuple[int, ...] = ()  # () = every degree that a part allows
    pipeline_parallel_sizes: tuple[int, ...] = (1,)  # stages; more than one is extrapolated
    dtypes: tuple[WeightDtype, ...] = DTYPES  # of the weights; activations and KV are bfloat16
    max_model_len: int | None = None  # positions that a slot is compiled for; None = bucket of input + output
    has_prefill_buckets: bool = True  # False: each prompt is padded to the compiled length, as optimum-neuron does
    batching: Batching = "continuous"  # neuron: prompts and decodes apart, and decode on automatic buckets
    max_batch: int = 256  # the largest batch with measurements behind it
    device_memory_utilization: float = 0.9  # as the server's default
    price_basis: PriceBasis = "on_demand"  # by which candidates are ordered
    chip_watts: float | None = None  # of one chip while it serves; none is published

    def __post_init__(self) -> None:
        for name, most in (("input_tokens", MAX_TOKENS), ("output_tokens", MAX_TOKENS), ("max_batch", MAX_BATCH)):
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise SettingsError(f"{name} is {value}: from 1 to {most} is possible")
        if not MIN_RATE <= self.request_rate <= MAX_RATE:
            raise SettingsError(f"request_rate is {self.request_rate}: from {MIN_RATE:g} to {MAX_RATE:g} is possible")
        for name in ("ttft_s", "tpot_s", "chip_watts"):
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
        self._check_batching()
        self._check_length()

    def _check_batching(self) -> None:
        if self.batching not in get_args(Batching):
            raise SettingsError(f"batching is {self.batching!r}: one of {', '.join(get_args(Batching))}")
        if self.batching == "neuron" and not self.has_prefill_buckets:
            raise SettingsError(
                "batching is 'neuron', which runs prompts on buckets: has_prefill_buckets cannot be False"
            )

    def _check_length(self) -> None:
        if self.max_model_len is not None and not self.total_tokens <= self.max_model_len <= MAX_TOKENS:
            raise SettingsError(
                f"max_model_len is {self.max_model_len}: input_tokens + output_tokens is {self.total_tokens}, "
                f"at most {MAX_TOKENS} is possible"
            )

    @property
    def total_tokens(self) -> int:
        """Tokens of one request, in and out."""
        return self.input_tokens + self.output_tokens

    @property
    def ttft_limit_s(self) -> float:
        return inf if self.ttft_s is None else self.ttft_s

    @property
    def tpot_limit_s(self) -> float:
        return inf if self.tpot_s is None else self.tpot_s


@dataclass(frozen=True, slots=True)
class Buckets:
    """Positions that the graphs are compiled for."""

    prefill: int
    decode: int  # of each slot: with continuous batching a step reads the whole compiled length

    @classmethod
    def of(cls, options: PlanOptions, model: ModelSpec) -> Buckets:
        """Raises SettingsError when the model has fewer positions than a request or a slot needs."""
        needed = options.max_model_len or options.total_tokens
        if needed > model.max_position:
            name = "max_model_len" if options.max_model_len else "input_tokens + output_tokens"
            raise SettingsError(f"{name} is {needed}: {options.model} has {model.max_position} positions")
        return cls.holding(options, model, options.input_tokens, options.total_tokens)

    @classmethod
    def holding(cls, options: PlanOptions, model: ModelSpec, longest_prompt: int, longest: int) -> Buckets:
        """Buckets for prompts and requests of at most so many tokens, which the model has positions for."""
        decode = options.max_model_len or bucket(longest, model.max_position)
        prefill = bucket(longest_prompt, decode) if options.has_prefill_buckets else decode
        return cls(prefill=prefill, decode=decode)
