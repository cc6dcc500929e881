"""Error bands of predicted steps and load figures, and the measurements that support a prediction.

For each measured configuration, a calibration keeps the error of a prediction that was fitted without its series. Rows
of one series (source, release, model) err alike, so a band counts series, not rows: it is the range that holds 80 % of
the errors of whole series, the near ones first, with the factor of Student's t for how few they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import exp, sqrt
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from ..host.late_module import LateModule
from .spread import NORMAL_P90, student_p90

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = LateModule("numpy")

Floats: TypeAlias = "NDArray[np.float64]"
Phase = Literal["decode", "prefill", "encode", "throughput", "itl", "ttft"]  # a step, or a figure under load
LOAD_FIGURES = ("throughput", "itl", "ttft")
Provenance = Literal["measured", "interpolated", "formula"]

HELD = 0.8  # share of measurements that a band holds: P10 to P90
SAME_SIZE = 1.05  # factor within which models are of one size
SAME_SHAPE = 2.0  # factor within which batches and lengths are alike
ALIKE = 0.5  # no step that is alike is as far
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
FALLOFF, LOAD_FALLOFF = 1.25, 0.5  # exponent of a sample's weight for each unit of distance; of figures under load
UNMEASURED = 0.5  # growth of a band for each way in which a step lies outside of the measured ones
WIDENING = 0.2  # growth of a band for each unit of distance to the nearest sample beyond the first unit
LEAST_MODELS = 3  # measured with a width of weights; with fewer it is hardly known what the width changes


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

    def is_like(self, other: Point) -> bool:
        """Return whether a measurement of `other` counts as one of this step."""
        kinds = ("phase", "chip", "tp", "weight_bytes", "has_experts")
        return (
            all(getattr(self, name) == getattr(other, name) for name in kinds)
            and _within(self.billions, other.billions, SAME_SIZE)
            and _within(self.batch, other.batch, SAME_SHAPE)
            and _within(self.positions, other.positions, SAME_SHAPE)
        )


Series = tuple[str, int, str]  # source, release and model of one sweep


@dataclass(frozen=True, slots=True)
class Sample:
    """Measurements of one configuration. `error` is measured over predicted, by a fit without the rows' series."""

    point: Point
    model: str
    source: str
    num_rows: int
    error: float
    release: int = 0  # minor release of Neuron SDK 2.x; 0: not stated

    @property
    def series(self) -> Series:
        return self.source, self.release, self.model

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
        self._without = lru_cache(maxsize=None)(self._without_series)

    def _band(self, point: Point, unseen: Series | None = None) -> Band:
        """Return the band of a step at `point`, without the samples of the series `unseen`."""
        if unseen is not None:
            return self._without(unseen).band(point)
        own = self._of(point.phase)
        if not own:
            return UNKNOWN
        table, far = self._tables[point.phase], self._distances(point)
        falloff = LOAD_FALLOFF if point.phase in LOAD_FIGURES else FALLOFF
        half = spread(table.sizes_of_errors, falloff * far, table.series)
        reasons = self.why_outside(point)
        first = int(far.argmin())
        half *= 1 + WIDENING * max(0.0, float(far[first]) - 1) + UNMEASURED * len(reasons)
        nearest = own[first]
        alike = [own[i] for i in np.flatnonzero(far < ALIKE) if point.is_like(own[i].point)]
        provenance: Provenance = "measured" if alike else "formula" if reasons else "interpolated"
        rows = sum(each.num_rows for each in alike) or nearest.num_rows
        return Band(exp(-half), exp(half), provenance, rows, nearest.name)

    def _without_series(self, unseen: Series) -> Evidence:
        return Evidence(each for each in self.samples if each.series != unseen)

    def _distances(self, point: Point) -> Floats:
        """Return the distance of `point` to each sample of its phase; 0 for the same step."""
        table, sizes = self._tables[point.phase], _sizes([point])
        apart = np.abs(table.places - sizes)
        kinds = OTHER_CHIP * (table.chips != point.chip) + OTHER_EXPERTS * (table.has_experts != point.has_experts)
        doublings = apart[:, :-1] @ np.array(list(PER_DOUBLING.values()))
        found: Floats = doublings + OTHER_WEIGHTS * apart[:, -1] + kinds
        return found

    def _why_outside(self, point: Point) -> tuple[str, ...]:
        """Return the ways in which a step lies outside of the measured steps of its phase."""
        samples = self._of(point.phase)
        on_chip = [each.point for each in samples if each.point.chip == point.chip]
        if not samples:
            return (f"the calibration has no measured {point.phase}",)
        if not on_chip:
            what = "pass of an encoder" if point.phase == "encode" else f"{point.phase} of an LLM"
            return (f"no {what} on {point.chip} is among the measurements",)
        kind = [each for each in on_chip if each.has_experts == point.has_experts]
        if not kind:
            return (f"no {point.phase} of {_kind(point)} on {point.chip} is among the measurements",)
        reasons, bits = [], 8 * point.weight_bytes
        if all(each.weight_bytes != point.weight_bytes for each in kind):
            reasons.append(f"no {point.phase} with {bits:.0f}-bit weights was measured there")
        elif bits < 16 and len(_models_of(samples, point.weight_bytes)) < LEAST_MODELS:
            reasons.append(f"fewer than {LEAST_MODELS} models were measured with {bits:.0f}-bit weights")
        found = (_out_of_range(point, kind, name) for name in RANGES)
        return (*reasons, *filter(None, found))

    def series_of(self, phase: Phase) -> frozenset[Series]:
        """Return the series that figures of a phase were measured in."""
        return frozenset(each.series for each in self._of(phase))

    def _of(self, phase: Phase) -> tuple[Sample, ...]:
        return self._phases[phase]

    @cached_property
    def _phases(self) -> dict[Phase, tuple[Sample, ...]]:
        return {phase: tuple(each for each in self.samples if each.point.phase == phase) for phase in get_args(Phase)}

    @cached_property
    def _tables(self) -> dict[Phase, _Table]:
        return {phase: _Table.of(own) for phase, own in self._phases.items() if own}


class _Table(NamedTuple):
    """The samples of one phase as arrays of one entry each."""

    places: Floats  # [samples, sizes]
    chips: NDArray[np.str_]
    has_experts: NDArray[np.bool_]
    sizes_of_errors: Floats  # absolute logarithms
    series: NDArray[np.intp]  # the number of each sample's series

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> _Table:
        points, numbers = [each.point for each in samples], dict[Series, int]()
        series = [numbers.setdefault(each.series, len(numbers)) for each in samples]
        return cls(
            _sizes(points),
            np.array([each.chip for each in points]),
            np.array([each.has_experts for each in points]),
            np.abs(np.log([each.error for each in samples])),
            np.array(series),
        )


def _sizes(points: Sequence[Point]) -> Floats:
    """Return binary logarithms of the sizes of PER_DOUBLING, and of the bytes of a weight: [points, sizes]."""
    rows = [(each.billions, each.tp, each.batch, each.positions, each.weight_bytes) for each in points]
    found: Floats = np.log2(np.array(rows, np.float64))
    return found


def spread(sizes: Floats, far: Floats, series: NDArray[np.intp]) -> float:
    """Return the logarithm of the factor within which HELD of the errors of unseen series lie.

    Args:
        sizes: Absolute logarithms of measured over predicted, [errors].
        far: Distances of their steps, times the falloff.
        series: Number of each error's series; the errors of one share its weight.
    """
    weights = np.exp(far.min() - far) / np.bincount(series)[series]
    shares = np.bincount(series, weights)
    count = float(weights.sum() ** 2 / (shares**2).sum())  # of series that weigh alike and would say as much
    few = student_p90(count - 1) / NORMAL_P90 * sqrt(1 + 1 / count)
    return weighted_quantile(sizes, weights, HELD) * few


def weighted_quantile(values: Floats, weights: Floats, share: float) -> float:
    """Return the value below which `share` of the weight lies, interpolated between the middles of weights."""
    order = np.lexsort((weights, values))
    sorted_weights = weights[order]
    middles = np.cumsum(sorted_weights) - sorted_weights / 2
    return float(np.interp(share * sorted_weights.sum(), middles, values[order]))


def _models_of(samples: Iterable[Sample], weight_bytes: float) -> set[str]:
    return {each.model for each in samples if each.point.weight_bytes == weight_bytes}


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
