"""Dollars per million tokens, in two accounts that are never mixed. Pure.

measured: a machine's price and the wall time of the run. modelled: an emulated instance's price and the device seconds
that the server's cost model charged the requests (`usage.neuronserve.device_seconds`); not available when the server
does not report them. An emulator's wall time is no device second, and a device second is no wall time.

The cost is divided over three kinds of tokens by their relative prices, so that the parts add up to the whole:
usd = p * (new input + cached_price_ratio * cached input + output_price_ratio * output). What failed costs, and yields
no token. Other conventions (all on output, all tokens alike) are given beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtests.errors import SpecError
from loadtests.metrics import is_good
from loadtests.records import RequestRecord
from loadtests.specs import PriceSpec
from server.config import CatalogConfig
from server.device.catalog import Instance, load_catalog
from server.device.prices import PRICE_BASES, Price, PriceBasis
from server.errors import DeviceError, SettingsError
from server.workload.slo import Slo

MILLION = 1e6
HOUR_S = 3600.0
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
    """$/1M by kind of token, after the module's formula; None where there is no token to divide by."""
    weight = tokens.new_input + spec.cached_price_ratio * tokens.cached_input + spec.output_price_ratio * tokens.output
    unit = _per_million(usd, weight)
    total = tokens.new_input + tokens.cached_input + tokens.output
    return {
        "cost_per_million_input_tokens_usd": unit,
        "cost_per_million_cached_input_tokens_usd": None if unit is None else unit * spec.cached_price_ratio,
        "cost_per_million_output_tokens_usd": None if unit is None else unit * spec.output_price_ratio,
        "cost_per_million_total_tokens_usd": _per_million(usd, total),
        "cost_per_million_tokens_all_cost_on_output_usd": _per_million(usd, tokens.output),
        "cost_per_million_good_output_tokens_usd": _per_million(usd, tokens.good_output or 0),
    }


def measured(records: Sequence[RequestRecord], duration_s: float, spec: PriceSpec, slo: Slo) -> Account:
    """The account of wall time."""
    if spec.price_per_hour is None:
        return _not_available("no price_per_hour was given")
    usd = spec.price_per_hour * duration_s / HOUR_S / spec.utilization
    return {
        "available": True,
        "basis": f"measured wall time at ${spec.price_per_hour:g}/h ({spec.price_label or 'machine not stated'})",
        "price_per_hour_usd": spec.price_per_hour,
        "seconds": duration_s,
        "utilization": spec.utilization,
        "usd": usd,
        **per_million(usd, TokenCounts.of(records, slo), spec),
    }


def modelled(records: Sequence[RequestRecord], duration_s: float, spec: PriceSpec, slo: Slo) -> Account:
    """The account of modelled device time. Raises SpecError when the instance is unknown or has no such price."""
    if spec.instance is None:
        return _not_available("no instance was given")
    part = find_instance(spec)
    done = [record for record in records if record.is_ok]
    silent = sum(record.device_seconds is None for record in done)
    if not done or silent:
        return _not_available(f"the server gave no device seconds for {silent} of {len(done)} completed requests")
    seconds = sum(record.device_seconds or 0.0 for record in records)
    tokens = TokenCounts.of(records, slo)
    price = price_of(part, spec.price_basis)
    usd = _modelled_usd(price.usd, seconds, spec)
    where = f"{spec.region} of {price.date} ({price.source})"
    return {
        "available": True,
        "basis": f"modelled device time on {part.name}, {spec.price_basis} ${price.usd:g}/h in {where}",
        "instance": part.name,
        "price_basis": spec.price_basis,
        "price_per_hour_usd": price.usd,
        "seconds": seconds,
        "utilization": spec.utilization,
        "instance_share": spec.instance_share,
        "device_busy_fraction_of_wall": seconds / duration_s,
        "usd": usd,
        **per_million(usd, tokens, spec),
        "by_price_basis": {basis: _at(part, basis, seconds, (tokens, spec)) for basis in PRICE_BASES},
        "fitted_output_price_ratio": fitted_ratio(done),
    }


def fitted_ratio(done: Sequence[RequestRecord]) -> float | None:
    """Device seconds of an output token in those of a new input token, by least squares over the requests.

    None when there are too few requests, when their lengths do not differ, or when the fit has no meaning (<= 0).
    """
    if len(done) < _FIT_MIN_REQUESTS:
        return None
    mix = np.array([[r.prompt_tokens - r.cached_tokens, r.output_tokens] for r in done], dtype=np.float64)
    if np.linalg.matrix_rank(mix) < 2:
        return None
    seconds = np.array([r.device_seconds or 0.0 for r in done])
    a, b = np.linalg.lstsq(mix, seconds, rcond=None)[0]
    return float(b / a) if a > 0 and b > 0 else None


def find_instance(spec: PriceSpec) -> Instance:
    """The catalogue's instance. Raises SpecError for an unknown one, and for a catalogue file that is wrong."""
    try:
        catalog = load_catalog(CatalogConfig(spec.catalog, spec.region, spec.spot_discount))
        return catalog.instance(spec.instance or "")
    except (DeviceError, SettingsError) as error:
        raise SpecError(f"price.instance: {error}") from error


def price_of(part: Instance, basis: PriceBasis) -> Price:
    """Price of an hour. Raises SpecError when the catalogue has no such price."""
    try:
        return part.price(basis)
    except DeviceError as error:
        raise SpecError(f"price.price_basis is {basis!r}: {error}") from error


def _at(part: Instance, basis: PriceBasis, seconds: float, rest: tuple[TokenCounts, PriceSpec]) -> Account | None:
    """The same account at another of the instance's prices."""
    tokens, spec = rest
    price = part.prices.of(basis)
    if price is None:
        return None
    return {
        "price_per_hour_usd": price.usd,
        "price_date": price.date,
        **per_million(_modelled_usd(price.usd, seconds, spec), tokens, spec),
    }


def _modelled_usd(price: float, seconds: float, spec: PriceSpec) -> float:
    return price * spec.instance_share * seconds / HOUR_S / spec.utilization


def _per_million(usd: float, tokens: float) -> float | None:
    return usd / tokens * MILLION if tokens else None


def _not_available(reason: str) -> Account:
    return {"available": False, "reason": reason}
