"""Published figures of GPU instances, from references.json. A plan shows them and never computes with them.

Each was measured with its own load, lengths, software and year, often not all stated. So they cannot be compared one to
one, neither with a plan nor with each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from math import log
from typing import Any

from rich.console import Group
from rich.table import Table

from ..server.device.prices import rent_usd
from ..server.models.tensors import num_params
from ..server.typed_json import decode
from .plan.report import PlanReport

NUM_NEAREST = 10  # rows beside a plan
MAX_RATIO = 2.0  # of parameters
NONE_NEAR = f"no published GPU figure is known of a model within {MAX_RATIO:g} times the size"
NOT_COMPARABLE = (
    "Not comparable one to one: each row has a load, lengths, software and a date of its own; - is not stated there. "
    "$/1M out: all dollars of the instance over the output tokens/s of the row, whether or not its load fills it."
)


@dataclass(frozen=True, slots=True)
class Reference:
    """One published measurement. None is "not stated"."""

    model: str
    params_b: float  # billions, all experts
    instance: str
    gpu: str
    gpus: int  # used, of those of the instance
    software: str
    weights: str
    load: str  # how requests arrived
    output_tokens_s: float
    source: str  # link
    date: str  # ISO, of the source
    input_tokens: int | None = None  # means of a request
    output_tokens: int | None = None
    tpot_ms: float | None = None  # mean or median, whichever was published
    ttft_ms: float | None = None

    def usd_per_million(self) -> float:
        """Return dollars for a million output tokens by the on-demand price of the whole instance."""
        return rent_usd(prices().hourly_usd[self.instance], 1e6 / self.output_tokens_s)

    def as_json(self) -> dict[str, Any]:
        """Return the row with its instance's dollars an hour."""
        table = prices()
        usd = table.hourly_usd[self.instance]
        price = {"hourly_usd": usd, "region": table.region, "source": table.source, "date": table.date}
        return asdict(self) | {"price": price, "usd_per_million_output_tokens": self.usd_per_million()}


@dataclass(frozen=True, slots=True)
class GpuPrices:
    """On-demand dollars an hour, Linux."""

    region: str
    date: str
    source: str
    hourly_usd: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Table:
    prices: GpuPrices
    rows: tuple[Reference, ...]


@cache
def _table() -> _Table:
    return decode(files("neuronserve.planner").joinpath("references.json").read_text(encoding="utf-8"), _Table)


def references() -> tuple[Reference, ...]:
    """Return all rows of references.json."""
    return _table().rows


def prices() -> GpuPrices:
    """Return the prices of the GPU instances."""
    return _table().prices


def nearest(num_params: int, count: int = NUM_NEAREST) -> tuple[Reference, ...]:
    """Return at most `count` rows of models within MAX_RATIO of `num_params` parameters, nearest first."""

    def distance(row: Reference) -> float:
        return abs(log(row.params_b * 1e9 / num_params))

    return tuple(sorted((row for row in references() if distance(row) <= log(MAX_RATIO)), key=distance)[:count])


def beside(report: PlanReport) -> tuple[Reference, ...]:
    """Return the rows for a plan's model."""
    return nearest(num_params(report.model))


def render(report: PlanReport) -> Group | str:
    """Return a table of the plan's first row and the published rows, with their sources below."""
    rows = beside(report)
    if not rows:
        return NONE_NEAR
    table = Table(title="Published GPU figures of models of about this size")
    for column in ("", "model", "instance", "GPUs", "software", "weights", "load"):
        table.add_column(column, no_wrap=column in ("", "model", "instance"))
    for column in ("in", "out", "tok/s", "TPOT ms", "TTFT ms", "$/h", "$/1M out", "date"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_row(*_planned(report), end_section=True)
    sources = {source: f"[{number}]" for number, source in enumerate(dict.fromkeys(row.source for row in rows), 1)}
    for row in rows:
        table.add_row(sources[row.source], *_published(row))
    usd = prices()
    priced = f"$/h of GPUs: on demand, Linux, {usd.region}, {usd.date}, {usd.source}"
    return Group(table, NOT_COMPARABLE, priced, *(f"{number} {source}" for source, number in sources.items()))


def _planned(report: PlanReport) -> Iterator[str]:
    best, options = report.candidates[0], report.options
    yield from ("plan", options.model, best.device, f"none: TP {best.tp} x DP {best.dp}", "estimated", best.dtype)
    yield f"{options.request_rate:g}/s on {best.instances}, batch {best.batch}"
    yield from _numbers(report.demand.input_tokens, report.demand.output_tokens, best.output_tokens_s)
    yield from _numbers(best.tpot_s * 1e3, best.ttft_s * 1e3)
    price = best.at_rate[options.price_basis]
    usd = None if price is None else price.hourly_usd / best.instances
    yield "-" if usd is None else f"{usd:.2f}"
    yield "-" if usd is None else f"{rent_usd(usd, 1e6 / best.output_tokens_s):.2f}"
    yield "-"


def _published(row: Reference) -> Iterator[str]:
    yield from (row.model, row.instance, f"{row.gpus} x {row.gpu}", row.software, row.weights, row.load)
    yield from _numbers(row.input_tokens, row.output_tokens, row.output_tokens_s, row.tpot_ms, row.ttft_ms)
    yield from (f"{prices().hourly_usd[row.instance]:.2f}", f"{row.usd_per_million():.2f}", row.date)


def _numbers(*values: float | None) -> Iterator[str]:
    return ("-" if value is None else f"{value:,.1f}".removesuffix(".0") for value in values)
