"""Keys of a scenario, with their defaults; each is also a flag. Values are checked here.

Keys that `vllm bench serve` has too have its names.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ..server.device.prices import DEFAULT_REGION, PriceBasis
from ..workload.arrivals import Ramp
from ..workload.slo import Slo
from .openai_api import Backend

TraceName = Literal["azure-trace", "burstgpt-trace", "csv-trace", "mooncake-trace"]
DatasetName = Literal["random", "sharegpt", "prefix", "multi-turn", TraceName, "jsonl"]
ArrivalProcess = Literal["auto", "poisson", "gamma", "constant", "ramp", "trace", "closed", "burst"]


def _above(name: str, value: float | None, limit: float) -> None:
    if value is not None and not value > limit:
        raise ValueError(f"{name} is {value:g}: it must be above {limit:g}")


def _at_least(name: str, value: float | None, limit: float) -> None:
    if value is not None and not value >= limit:
        raise ValueError(f"{name} is {value:g}: it must be at least {limit:g}")


def _is_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name} is {value:g}: it must be above 0 and at most 1")


class Spec(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A section of a scenario."""


class EndpointSpec(Spec, frozen=True):
    """The server, and the API that requests use."""

    base_url: Annotated[str, Meta(description="address of the server")] = "http://127.0.0.1:8000"
    backend: Annotated[Backend, Meta(description="/v1/completions with token ids, or /v1/chat/completions")] = "openai"
    endpoint: Annotated[str | None, Meta(description="path (default: the backend's)")] = None
    model: Annotated[str | None, Meta(description="model name (default: the first of /v1/models)")] = None
    tokenizer: Annotated[
        str | None, Meta(description="tokenizer.json or its directory: prompts from the model's own vocabulary")
    ] = None
    request_timeout_s: Annotated[float, Meta(description="seconds until a request counts as failed")] = 600.0
    extra_body: Annotated[dict[str, Any], Meta(description="JSON object merged into every request")] = {}

    def __post_init__(self) -> None:
        _above("request_timeout_s", self.request_timeout_s, 0)


class DatasetSpec(Spec, frozen=True):
    """Prompts. Lengths are tokens."""

    dataset_name: Annotated[DatasetName, Meta(description="kind of prompts")] = "random"
    dataset_path: Annotated[str | None, Meta(description="file of a trace or of own requests")] = None
    num_prompts: Annotated[int, Meta(description="requests to send")] = 200
    random_input_len: Annotated[int, Meta(description="new prompt tokens of a request")] = 512
    random_output_len: Annotated[int, Meta(description="tokens to generate for a request")] = 128
    random_range_ratio: Annotated[float, Meta(description="lengths are uniform in len*(1-r) to len*(1+r)")] = 0.0
    prefix_len: Annotated[int, Meta(description="tokens that all prompts of a group begin with")] = 0
    num_prefixes: Annotated[int, Meta(description="groups of prompts that share a prefix")] = 1
    num_turns: Annotated[int, Meta(description="requests of a session (multi-turn)")] = 4
    think_time_s: Annotated[float, Meta(description="mean seconds between an answer and the next turn")] = 0.0
    length_scale: Annotated[float, Meta(description="factor on the lengths of a trace or of sharegpt")] = 1.0
    max_total_len: Annotated[int | None, Meta(description="leave out sessions of more tokens, and count them")] = None

    def __post_init__(self) -> None:
        for name in ("num_prompts", "random_input_len", "random_output_len", "num_prefixes", "num_turns"):
            _at_least(name, getattr(self, name), 1)
        _at_least("prefix_len", self.prefix_len, 0)
        _at_least("think_time_s", self.think_time_s, 0)
        _above("length_scale", self.length_scale, 0)
        _at_least("max_total_len", self.max_total_len, 2)
        if not 0 <= self.random_range_ratio < 1:
            raise ValueError(f"random_range_ratio is {self.random_range_ratio:g}: it must be in [0, 1)")


class ArrivalSpec(Spec, frozen=True):
    """Arrivals. `auto`: gamma at a finite rate, else a trace's times, else closed loop, else all at once."""

    arrival: Annotated[ArrivalProcess, Meta(description="arrival process")] = "auto"
    request_rate: Annotated[float, Meta(description="sessions a second; inf for no rate")] = math.inf
    burstiness: Annotated[float, Meta(description="shape of the gamma process: 1 is Poisson, below 1 bursts")] = 1.0
    max_concurrency: Annotated[int | None, Meta(description="most requests open at once")] = None
    ramp_up_strategy: Annotated[Ramp, Meta(description="how the rate rises (ramp)")] = "linear"
    ramp_up_start_rps: Annotated[float | None, Meta(description="rate at the start of a ramp")] = None
    ramp_up_end_rps: Annotated[float | None, Meta(description="rate at the end of a ramp")] = None
    trace_speed: Annotated[float, Meta(description="how many times as fast a trace is replayed")] = 1.0
    duration_s: Annotated[
        float | None, Meta(description="seconds to send for: sets num_prompts at a rate, ends a closed loop")
    ] = None

    def __post_init__(self) -> None:
        for name in ("request_rate", "burstiness", "trace_speed", "ramp_up_start_rps", "ramp_up_end_rps", "duration_s"):
            _above(name, getattr(self, name), 0)
        _at_least("max_concurrency", self.max_concurrency, 1)


class PriceSpec(Spec, frozen=True):
    """Price of an hour: of the emulated instance, or of another machine that served, for wall time."""

    instance: Annotated[
        str | None, Meta(description="emulated instance, whose price is paid (default: the server's)")
    ] = None
    price_basis: Annotated[
        PriceBasis | None,
        Meta(description="price of the headline figures (default: the server's, or on_demand)"),
    ] = None
    catalog: Annotated[str | None, Meta(description="TOML file with instances and prices over the built-in ones")] = (
        None
    )
    region: Annotated[str, Meta(description="AWS region whose prices are used")] = DEFAULT_REGION
    spot_discount: Annotated[float | None, Meta(description="share off the on-demand price of a spot instance")] = None
    instance_share: Annotated[
        float | None,
        Meta(description="share of the instance that this server occupies (default: by its inventory, or 1)"),
    ] = None
    price_per_hour: Annotated[
        float | None, Meta(description="USD an hour of wall time (default: the price of the emulated instance)")
    ] = None
    price_label: Annotated[str | None, Meta(description="name of that machine, and the source of its price")] = None
    output_price_ratio: Annotated[float, Meta(description="price of an output token in input tokens")] = 4.0
    cached_price_ratio: Annotated[float, Meta(description="price of a cached input token in input tokens")] = 0.1
    utilization: Annotated[float, Meta(description="average utilization of the paid time")] = 1.0

    def __post_init__(self) -> None:
        _above("output_price_ratio", self.output_price_ratio, 0)
        _at_least("cached_price_ratio", self.cached_price_ratio, 0)
        _above("price_per_hour", self.price_per_hour, 0)
        if self.spot_discount is not None and not 0 <= self.spot_discount < 1:
            raise ValueError(f"spot_discount is {self.spot_discount:g}: it must be at least 0 and below 1")
        if self.instance_share is not None:
            _is_share("instance_share", self.instance_share)
        _is_share("utilization", self.utilization)

    @property
    def names_a_price(self) -> bool:
        """Whether the flags choose a price of the catalogue instead of the server's own."""
        return bool(self.instance or self.price_basis or self.catalog or self.region != DEFAULT_REGION)


class RunSpec(Spec, frozen=True):
    """Course of a run."""

    seed: Annotated[int, Meta(description="seed of prompts and arrivals")] = 0
    num_warmups: Annotated[int, Meta(description="requests before the measurement, with prompts of their own")] = 5
    ignore_eos: Annotated[bool, Meta(description="request exactly the planned number of tokens")] = True
    temperature: Annotated[float | None, Meta(description="sampling temperature")] = 0.0
    return_token_ids: Annotated[bool, Meta(description="request token ids and check the counts with them")] = False
    request_id_prefix: Annotated[str, Meta(description="prefix of X-Request-Id")] = "bench-"
    max_lag_ms: Annotated[
        float, Meta(description="largest p99 lag of the generator; a later result is not published")
    ] = 10.0
    label: Annotated[str | None, Meta(description="name of this run in files and reports")] = None
    metadata: Annotated[dict[str, str], Meta(description="KEY=VALUE for the record, such as precision=int8")] = {}

    def __post_init__(self) -> None:
        _at_least("seed", self.seed, 0)
        _at_least("num_warmups", self.num_warmups, 0)
        _at_least("temperature", self.temperature, 0)
        _above("max_lag_ms", self.max_lag_ms, 0)
        if not self.request_id_prefix.isascii() or not self.request_id_prefix.isprintable():
            raise ValueError(f"request_id_prefix is {self.request_id_prefix!r}: it must be printable ASCII")


class Scenario(Spec, frozen=True):
    """A whole load test."""

    name: str = "custom"
    description: str = ""
    endpoint: EndpointSpec = EndpointSpec()
    dataset: DatasetSpec = DatasetSpec()
    arrival: ArrivalSpec = ArrivalSpec()
    slo: Slo = Slo()
    price: PriceSpec = PriceSpec()
    run: RunSpec = RunSpec()
