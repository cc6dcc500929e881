"""Report of a plan: every configuration that fits, with its figures, and the excluded ones with the reason.

It holds and sorts figures, and computes only prices per token. An unknown figure is None, never a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from ...server.config.formats import StackName
from ...server.cost.evidence import Provenance
from ...server.device.instances import Instance
from ...server.device.prices import DEFAULT_REGION, PRICE_BASES, PriceBasis, regions_with
from ...server.device.support import Verdict
from ...server.models.spec import ModelSpec
from ...server.models.tensors import num_params
from .demand import Demand
from .known import Known
from .memory import tight_host
from .options import Buckets, PlanOptions
from .running import NOT_ASKED, Place, Running, question_of, running_of, verdict_on
from .weight_types import WeightDtype

BOUGHT_BASES: tuple[PriceBasis, ...] = ("on_demand", "reserved")  # a missing spot price is not reported
NO_POWER = "tokens per joule: no power figure is published for any instance of the catalogue; --chip-watts gives one"


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """Dollars for a million tokens. Input and output shares follow the device time of prefill and decode."""

    hourly_usd: float  # of all instances
    input_usd: float
    output_usd: float  # 0 when requests have one output token: the prefill makes it
    total_usd: float  # all dollars over input and output tokens together

    @classmethod
    def of(cls, hourly_usd: float, request_rate: float, prefill_share: float, demand: Demand) -> TokenPrice:
        """Return the price if `request_rate` requests a second are served for `hourly_usd` an hour."""
        request_usd = hourly_usd / 3600 / request_rate
        return cls(
            hourly_usd=hourly_usd,
            input_usd=1e6 * request_usd * prefill_share / demand.input_tokens,
            output_usd=1e6 * request_usd * (1 - prefill_share) / demand.output_tokens,
            total_usd=1e6 * request_usd / demand.total_tokens,
        )


@dataclass(frozen=True, slots=True)
class SimulatedTimes:
    """Mean and percentiles over the requests of a simulation, in seconds."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Simulated:
    """Result of the simulation of a row."""

    ttft_s: SimulatedTimes
    tpot_s: SimulatedTimes
    requests: int
    instances: int  # simulated; fewer than the row's if it has many
    used: dict[str, float]  # each limited figure, with its standard errors, over its limit

    @property
    def misses(self) -> tuple[str, ...]:
        """Missed limits, and by how much."""
        return tuple(f"{name} misses its limit by {used - 1:.1%}" for name, used in self.used.items() if used > 1)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration that fits. Seconds are means. Figures "at the rate" assume that `instances` share it."""

    device: str
    tp: int
    pp: int  # pipeline stages of a replica, each of `tp` cores
    dp: int  # replicas on one instance, or side by side on one group of them
    dtype: WeightDtype
    batch: int  # slots of one replica
    stack: StackName
    memory_bytes: int  # on each core
    memory_budget_bytes: int
    prefill_s: float
    decode_s: float
    ttft_s: float  # at the rate, waits included
    tpot_s: float  # at the rate, other prompts' prefills included
    quantiles_s: dict[str, float]  # of the same by name, such as `TTFT p95`
    load: float  # share of saturation at the rate
    saturated_output_tokens_s: float  # of one instance with every slot always busy
    slo_request_rate: float  # most of one of the instances within the limits; 0 if there is none
    output_tokens_s: float  # of one instance at the rate
    instances: int  # for the rate within the limits; if these cannot be met, for the rate alone
    sized_at: float  # quantile of the step times at which instances and limits are computed; 0.5: as predicted
    at_rate: dict[PriceBasis, TokenPrice | None]  # None: no price is published
    at_capacity: dict[PriceBasis, TokenPrice | None]  # one of the instances, as full as the limits allow
    known: Known  # evidence for the figures, and their bands
    misses: tuple[str, ...] = ()  # missed limits, and by how much
    extrapolated: str = ""  # why no measurement supports the times
    bubble: float = 0.0  # share of time in which decode leaves the stages idle
    tokens_per_joule: float | None = None  # output tokens at the rate; None without a power figure
    grams_per_million_tokens: float | None = None  # CO2 equivalent, output tokens; None without a grid's factor
    region: str = DEFAULT_REGION  # of the prices
    lnc: int = 1  # physical NeuronCores in a logical one
    instances_per_replica: int = 1
    tokens_per_step: float = 1.0  # tokens of a slot in a decode step: more than one with speculative decoding
    running: Running = NOT_ASKED  # whether a real accelerator runs it
    simulated: Simulated | None = None  # of the first row

    @property
    def meets_slo(self) -> bool:
        return not self.misses

    @property
    def place(self) -> Place:
        """Device, TP, PP and weights."""
        return self.device, self.tp, self.pp, self.dtype

    @property
    def places(self) -> int:
        """Instances, or groups of them that hold one replica."""
        return self.instances // self.instances_per_replica

    @property
    def configuration(self) -> tuple[object, ...]:
        """Everything that is compiled: the device, its cores and group, the degree, the type and the slots."""
        return self.device, self.lnc, self.instances_per_replica, self.tp, self.pp, self.dtype, self.batch

    def sure_hourly_usd(self, basis: PriceBasis) -> float:
        """Return the 90th percentile of dollars an hour; inf without a price, or if no number of instances suffices."""
        price, most = self.at_rate[basis], self.known.instances[1]
        return inf if price is None or most is None else price.hourly_usd / self.instances * most

    def order(self, basis: PriceBasis) -> tuple[object, ...]:
        """Return the sort key: limits, no known failure, a price, what is known to run, cost, its 90th percentile.

        The cost is that of the instances at the quantile `sized_at`, which is the slow end of the band for a row
        without measurements: it comes first only if it wins even so.
        """
        price = self.at_rate[basis]
        cost = 0.0 if price is None else price.hourly_usd
        return (
            not self.meets_slo,
            self.running.runs == "no",
            price is None,
            self.running.rank,
            cost,
            self.sure_hourly_usd(basis),
            _RANK[self.known.provenance],
            self.tpot_s,
            self.ttft_s,
            self.device,
            self.tp,
            self.pp,
            self.dtype,
            self.batch,
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"meets_slo": self.meets_slo, "known": self.known.as_json()}


_RANK: dict[Provenance, int] = {"measured": 0, "interpolated": 1, "formula": 2}


@dataclass(frozen=True, slots=True)
class Excluded:
    """A configuration that cannot be built, and why.

    `lacks_bytes` is the missing memory of each core; 0 if the host's memory is the reason; None for other reasons.
    """

    device: str  # a group of instances with its number: 2 x trn1.32xlarge
    tp: int | None  # None: all degrees
    dtype: WeightDtype | None  # None: all types
    reason: str
    lacks_bytes: int | None = None
    pp: int = 1


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Result of a plan. `candidates` are in order: within the limits by cost, then the others by cost."""

    options: PlanOptions
    model: ModelSpec
    demand: Demand
    buckets: Buckets
    calibration: str
    candidates: tuple[Candidate, ...]
    excluded: tuple[Excluded, ...]
    notes: tuple[str, ...]
    parts: tuple[Instance, ...]  # considered instances, with their prices

    @property
    def best(self) -> Candidate | None:
        """The cheapest candidate within the limits; None if there is none."""
        first = self.candidates[0]
        return first if first.meets_slo else None

    def part(self, name: str) -> Instance:
        """Return the instance of a row."""
        return next(part for part in self.parts if part.name == name)

    def label(self, row: Candidate) -> str:
        """Return the device of a row, with its group, logical cores and region if these were a choice."""
        options = self.options
        words = [f"{row.instances_per_replica} x {row.device}" if row.instances_per_replica > 1 else row.device]
        words += [f"LNC {row.lnc}"] * bool(options.logical_nc_configs)
        words += [row.region] * (len(options.regions) > 1)
        return " ".join(words)

    @property
    def verdicts(self) -> dict[Place, Verdict]:
        """Reports of the model on the real accelerator, by the places of all candidates."""
        places = dict.fromkeys(row.place for row in self.candidates)
        return {place: verdict_on(self.options, self.buckets, self.part(place[0]), place) for place in places}

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON: seconds, bytes, dollars; null means "not known"."""
        known = self.verdicts
        return {
            "options": asdict(self.options),
            "model": {"architecture": self.model.architecture, "num_params": num_params(self.model)},
            "demand": self.demand.as_json(),
            "buckets": asdict(self.buckets),
            "calibration": self.calibration,
            "prices": {part.name: asdict(part.prices) for part in self.parts},
            "candidates": [row.as_json() | {"runs": known[row.place].outcome} for row in self.candidates],
            "will_run": [
                dict(zip(("device", "tp", "pp", "dtype"), place, strict=True)) | found.as_json()
                for place, found in known.items()
            ],
            "excluded": [asdict(entry) for entry in self.excluded],
            "notes": list(self.notes),
        }


def with_verdicts(
    candidates: Iterable[Candidate], model: ModelSpec, options: PlanOptions, buckets: Buckets, parts: Iterable[Instance]
) -> list[Candidate]:
    """Return `candidates` with the verdict on whether a real accelerator runs them."""
    of_name, found = {part.name: part for part in parts}, dict[tuple[object, ...], Running]()
    rows = []
    for row in candidates:
        key = (row.place, row.instances_per_replica)
        if key not in found:
            part = of_name[row.device]
            tight = tight_host(model, row.dtype, part, row.instances_per_replica, options)
            found[key] = running_of(question_of(options, buckets, part, row.place), options, tight)
        rows.append(replace(row, running=found[key]))
    return rows


def price_notes(instances: tuple[Instance, ...], chip_watts: float | None) -> Iterator[str]:
    """Yield notes on the sources of prices and power, and on missing prices other than spot prices."""
    for basis in PRICE_BASES:
        sources = dict.fromkeys(
            (instance.prices.region, price.source, price.date)
            for instance in instances
            if (price := instance.prices.of(basis))
        )
        for region, source, date in sources:
            yield f"{basis} prices: Linux, {region}, {source}, {date}"
    yield from dict.fromkeys(note for instance in instances for note in _missing_prices(instance))
    yield NO_POWER if chip_watts is None else f"tokens per joule: at the {chip_watts:g} W a chip that were given"


def _missing_prices(instance: Instance) -> Iterator[str]:
    """Yield the bases without a price, and the regions with a price on the first of them."""
    missing = [basis for basis in BOUGHT_BASES if instance.usd(basis) is None]
    if missing:
        elsewhere = regions_with(instance.name, missing[0])
        known = f"; {missing[0]} is known in {', '.join(elsewhere)}" if elsewhere else ""
        where = instance.prices.region
        yield f"{instance.name}: no {' and no '.join(missing)} price in {where} is known, nor a cost by it{known}"
