"""Error bands of predicted steps, and the measured steps that support a prediction.

For each measured configuration, a calibration keeps the error of a prediction that was fitted without its source. The
band of a new prediction is the spread of these errors, weighted by their nearness to the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import exp, log2
from typing import Literal, get_args

Phase = Literal["decode", "prefill", "encode"]
Provenance = Literal["measured", "interpolated", "formula"]

LOW, HIGH = 0.1, 0.9  # quantiles of a band
SAME_SIZE = 1.05  # factor within which models are of one size
SAME_SHAPE = 2.0  # factor within which batches and lengths are alike
RANGE_MARGIN = 1.25  # factor by which a range extends beyond the measured sizes

# Contributions to a distance: of a different kind, and of each doubling of a size.
OTHER_CHIP, OTHER_WEIGHTS, OTHER_EXPERTS = 1.0, 0.5, 2.0
PER_DOUBLING = {"billions": 0.5, "tp": 0.5, "batch": 0.25, "positions": 0.15}
RANGES = {  # sizes with a measured range: a label, and whether the range has a lower end
    "billions": ("B parameters", True),
    "tp": ("cores", True),
    "batch": ("slots", False),
    "positions": ("positions", False),
}
FALLOFF = 0.5  # exponent of a sample's weight for each unit of distance
UNMEASURED = 0.5  # growth of a band for each way in which a step lies outside of the measured ones
WIDENING = 0.35  # growth of a band for each unit of distance to the nearest sample beyond the first unit


@dataclass(frozen=True, slots=True)
class Point:
    """Coordinates of a step of a compiled graph among other steps."""

    phase: Phase
    chip: str
    billions: float  # of weights in the model's matrices
    tp: int
    batch: int
    positions: int  # of the compiled graph
    weight_bytes: float  # of one stored weight
    has_experts: bool

    def distance(self, other: Point) -> float:
        """Return the distance to another step of the same phase; 0 for the same step."""
        apart = sum(
            weight * abs(log2(getattr(self, name) / getattr(other, name))) for name, weight in PER_DOUBLING.items()
        )
        apart += OTHER_CHIP * (self.chip != other.chip) + OTHER_EXPERTS * (self.has_experts != other.has_experts)
        return apart + OTHER_WEIGHTS * abs(log2(self.weight_bytes / other.weight_bytes))

    def is_like(self, other: Point) -> bool:
        """Return whether a measurement of `other` counts as one of this step."""
        kinds = ("phase", "chip", "tp", "weight_bytes", "has_experts")
        return (
            all(getattr(self, name) == getattr(other, name) for name in kinds)
            and _within(self.billions, other.billions, SAME_SIZE)
            and _within(self.batch, other.batch, SAME_SHAPE)
            and _within(self.positions, other.positions, SAME_SHAPE)
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """Measurements of one configuration. `error` is measured over predicted, by a fit without the rows' source."""

    point: Point
    model: str
    source: str
    num_rows: int
    error: float

    @property
    def name(self) -> str:
        """Name such as `Llama-3-8B TP8 batch 32 on Inferentia2`."""
        return f"{self.model} TP{self.point.tp} batch {self.point.batch} on {self.point.chip}"


@dataclass(frozen=True, slots=True)
class Band:
    """Factors of a prediction between which 80 % of measurements are expected."""

    low: float
    high: float
    provenance: Provenance
    num_rows: int  # measured of this step, else of the nearest configuration
    nearest: str  # name of the nearest configuration; empty when a calibration has none

    def as_json(self) -> dict[str, float | int | str]:
        """Return the factors as p10 and p90, with their provenance."""
        known = {"provenance": self.provenance, "num_rows": self.num_rows, "nearest": self.nearest}
        return {"p10": self.low, "p90": self.high, **known}

    def join(self, other: Band) -> Band:
        """Return the band of a figure that depends on both predictions: the wider limits, the weaker provenance."""
        worse = max(self, other, key=lambda band: (_RANK[band.provenance], band.high - band.low))
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Band(low, high, worse.provenance, worse.num_rows, worse.nearest)

    def beyond(self, reasons: int) -> Band:
        """Return the band, widened for a number of further `reasons` why no measurement supports the prediction."""
        wide = 1 + UNMEASURED * reasons
        return replace(self, low=self.low**wide, high=self.high**wide, provenance="formula") if reasons else self


_RANK: dict[Provenance, int] = {"measured": 0, "interpolated": 1, "formula": 2}
UNKNOWN = Band(0.5, 2.0, "formula", 0, "")  # without any sample: a factor of two is a guess, and says so


class Evidence:
    """The samples of a calibration. Results are cached."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.samples = tuple(samples)
        self.band = lru_cache(maxsize=None)(self._band)
        self.why_outside = lru_cache(maxsize=None)(self._why_outside)

    def _band(self, point: Point, unseen: str = "") -> Band:
        """Return the band of a step at `point`, without the samples of the source `unseen`."""
        own = [each for each in self._of(point.phase) if each.source != unseen]
        if not own:
            return UNKNOWN
        far = [point.distance(each.point) for each in own]
        weights = [each.num_rows**0.5 * exp(-FALLOFF * apart) for each, apart in zip(own, far, strict=True)]
        errors = [each.error for each in own]
        low, high = (weighted_quantile(errors, weights, share) for share in (LOW, HIGH))
        wide = 1 + WIDENING * max(0.0, min(far) - 1) + UNMEASURED * len(self.why_outside(point))
        nearest = own[far.index(min(far))]
        alike = [each for each in own if point.is_like(each.point)]
        provenance: Provenance = "measured" if alike else "formula" if self.why_outside(point) else "interpolated"
        rows = sum(each.num_rows for each in alike) or nearest.num_rows
        return Band(min(low, 1.0) ** wide, max(high, 1.0) ** wide, provenance, rows, nearest.name)

    def coverage(self, phase: Phase) -> tuple[float, float]:
        """Return the shares of configurations, and of their rows, within bands that were made without their source."""
        own = self._of(phase)
        inside = [each for each in own if self._holds(each)]
        rows = sum(each.num_rows for each in inside) / max(1, sum(each.num_rows for each in own))
        return len(inside) / max(1, len(own)), rows

    def _holds(self, sample: Sample) -> bool:
        band = self._band(sample.point, unseen=sample.source)
        return band.low <= sample.error <= band.high

    def _why_outside(self, point: Point) -> tuple[str, ...]:
        """Return the ways in which a step lies outside of the measured steps of its phase."""
        samples = self._of(point.phase)
        on_chip = [each.point for each in samples if each.point.chip == point.chip]
        if not samples:
            return (f"the calibration has no measured {point.phase}",)
        if not on_chip:
            return (f"no {point.phase} of an LLM on {point.chip} is among the measurements",)
        kind = [each for each in on_chip if each.has_experts == point.has_experts]
        if not kind:
            return (f"no {point.phase} of {_kind(point)} on {point.chip} is among the measurements",)
        reasons = []
        if all(each.weight_bytes != point.weight_bytes for each in kind):
            reasons.append(f"no {point.phase} with {8 * point.weight_bytes:.0f}-bit weights was measured there")
        found = (_out_of_range(point, kind, name) for name in RANGES)
        return (*reasons, *filter(None, found))

    def _of(self, phase: Phase) -> tuple[Sample, ...]:
        return self._phases[phase]

    @cached_property
    def _phases(self) -> dict[Phase, tuple[Sample, ...]]:
        phases: tuple[Phase, ...] = get_args(Phase)
        return {phase: tuple(each for each in self.samples if each.point.phase == phase) for phase in phases}


def weighted_quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the weight lies, interpolated between the middles of weights."""
    pairs = sorted(zip(values, weights, strict=True))
    total, below = sum(weights), 0.0
    previous: tuple[float, float] | None = None
    for value, weight in pairs:
        middle = (below + weight / 2) / total
        if middle >= share:
            if previous is None:
                return value
            at, last = previous
            return last + (value - last) * (share - at) / (middle - at)
        previous, below = (middle, value), below + weight
    return pairs[-1][0]


def _out_of_range(point: Point, measured: Sequence[Point], name: str) -> str:
    """Return why a size of a step is outside of the measured range; empty when it is not."""
    label, has_least = RANGES[name]
    values, value = [getattr(each, name) for each in measured], getattr(point, name)
    margin = 1.0 if name == "tp" else RANGE_MARGIN
    if value <= max(values) * margin and (value >= min(values) / margin or not has_least):
        return ""
    wanted, least, most = (_figure(each) for each in (value, min(values), max(values)))
    return f"{wanted} {label}: measured are {least} to {most}"


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _within(one: float, other: float, factor: float) -> bool:
    return 1 / factor <= one / other <= factor


def _kind(point: Point) -> str:
    return "a mixture of experts" if point.has_experts else "a dense model"
