"""Dollars per million tokens, in two accounts that are never mixed. Pure.

measured: a machine's price and the wall time of the run, which is what the instance costs in it; the machine is the
emulated instance unless `price_per_hour` names another. modelled: an emulated instance's price and the device seconds
that the server's cost model charged the requests (`usage.neuronserve.device_seconds`), if the server reports them. Wall
time of an emulator and device seconds are different quantities.

The cost is divided over three kinds of tokens by their relative prices, so that the shares add up to the whole:
usd = p * (new input + cached_price_ratio * cached input + output_price_ratio * output). Failed requests cost, and yield
no token. Other conventions (all cost on output, all tokens equal) are given too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..server.device.prices import HOUR_S, PRICE_BASES, PriceBasis, rent_usd, usd_per_million
from ..workload.slo import Slo
from .metrics import is_good
from .rate import HourRate
from .records import RequestRecord
from .specs import PriceSpec

_FIT_MIN_REQUESTS = 8

Account = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of completed requests."""

    new_input: int
    cached_input: int
    output: int
    good_output: int | None  # of requests that met the SLO; None without one

    @classmethod
    def of(cls, records: Sequence[RequestRecord], slo: Slo) -> TokenCounts:
        done = [record for record in records if record.is_ok]
        cached = sum(record.cached_tokens for record in done)
        good = sum(record.output_tokens for record in done if is_good(record, slo)) if slo.is_set else None
        prompt = sum(record.prompt_tokens for record in done)
        return cls(prompt - cached, cached, sum(record.output_tokens for record in done), good)


def per_million(usd: float, tokens: TokenCounts, spec: PriceSpec) -> dict[str, float | None]:
    """Return $/1M by kind of token, by the formula above; None without tokens."""
    weight = tokens.new_input + spec.cached_price_ratio * tokens.cached_input + spec.output_price_ratio * tokens.output
    unit = usd_per_million(usd, weight)
    total = tokens.new_input + tokens.cached_input + tokens.output
    return {
        "cost_per_million_input_tokens_usd": unit,
        "cost_per_million_cached_input_tokens_usd": None if unit is None else unit * spec.cached_price_ratio,
        "cost_per_million_output_tokens_usd": None if unit is None else unit * spec.output_price_ratio,
        "cost_per_million_total_tokens_usd": usd_per_million(usd, total),
        "cost_per_million_tokens_all_cost_on_output_usd": usd_per_million(usd, tokens.output),
        "cost_per_million_good_output_tokens_usd": usd_per_million(usd, tokens.good_output or 0),
    }


def wall_usd(duration_s: float, spec: PriceSpec, rate: HourRate | str) -> tuple[float, str] | None:
    """Return the dollars of `duration_s` of wall time, and whose price it is; None if no price is known."""
    if spec.price_per_hour is not None:
        usd = rent_usd(spec.price_per_hour, duration_s)
        label = f"${spec.price_per_hour:g}/h ({spec.price_label or 'machine not stated'})"
    elif isinstance(rate, HourRate):
        usd = rent_usd(rate.usd_per_hour, duration_s, rate.num_instances)
        label = f"the price of {rate.num_instances} x {rate.instance}, {rate.label}"
    else:
        return None
    return usd / spec.utilization, label


def measured(
    records: Sequence[RequestRecord], duration_s: float, spec: PriceSpec, slo: Slo, rate: HourRate | str
) -> Account:
    """Return the account of wall time, at the given price of an hour or that of the emulated instance."""
    found = wall_usd(duration_s, spec, rate)
    if found is None:
        return _not_available(f"no price_per_hour was given, and {rate}")
    usd, label = found
    return {
        "available": True,
        "basis": f"measured wall time at {label}",
        "price_per_hour_usd": usd * spec.utilization / duration_s * HOUR_S,
        "seconds": duration_s,
        "utilization": spec.utilization,
        "usd": usd,
        **per_million(usd, TokenCounts.of(records, slo), spec),
    }


def modelled(
    records: Sequence[RequestRecord], duration_s: float, spec: PriceSpec, slo: Slo, rate: HourRate | str
) -> Account:
    """Return the account of modelled device time at `rate`. If `rate` is a reason, the account is not available."""
    if isinstance(rate, str):
        return _not_available(rate)
    done = [record for record in records if record.is_ok]
    silent = sum(record.device_seconds is None for record in done)
    if not done or silent:
        return _not_available(f"the server gave no device seconds for {silent} of {len(done)} completed requests")
    seconds = sum(record.device_seconds or 0.0 for record in records)
    usd = rate.usd(seconds, spec.utilization)
    tokens = TokenCounts.of(records, slo)
    return {
        "available": True,
        "basis": f"modelled device time on {rate.instance}, {rate.label}",
        "instance": rate.instance,
        "price_basis": rate.basis,
        "price_per_hour_usd": rate.usd_per_hour,
        "price_source": rate.source,
        "seconds": seconds,
        "utilization": spec.utilization,
        "instance_share": rate.share,
        "device_busy_fraction_of_wall": seconds / duration_s,
        "usd": usd,
        **per_million(usd, tokens, spec),
        "by_price_basis": {basis: _at(rate, basis, seconds, (tokens, spec)) for basis in PRICE_BASES},
        "fitted_output_price_ratio": fitted_ratio(done),
    }


def fitted_ratio(done: Sequence[RequestRecord]) -> float | None:
    """Return device seconds of an output token over those of a new input token, by least squares over the requests.

    None if there are too few requests, if their lengths do not differ, or if the fit is meaningless (<= 0).
    """
    if len(done) < _FIT_MIN_REQUESTS:
        return None
    mix = np.array([[r.prompt_tokens - r.cached_tokens, r.output_tokens] for r in done], dtype=np.float64)
    if np.linalg.matrix_rank(mix) < 2:
        return None
    seconds = np.array([r.device_seconds or 0.0 for r in done])
    a, b = np.linalg.lstsq(mix, seconds, rcond=None)[0]
    return float(b / a) if a > 0 and b > 0 else None


def _at(rate: HourRate, basis: PriceBasis, seconds: float, rest: tuple[TokenCounts, PriceSpec]) -> Account | None:
    """Return the same account at another price of the instance."""
    tokens, spec = rest
    price = rate.prices.of(basis) if rate.prices else None
    if price is None:
        return None
    return {
        "price_per_hour_usd": price.usd,
        "price_date": price.date,
        **per_million(rate.usd(seconds, spec.utilization, price.usd), tokens, spec),
    }


def _not_available(reason: str) -> Account:
    return {"available": False, "reason": reason}
