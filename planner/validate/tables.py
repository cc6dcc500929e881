"""Tables of accuracies: by group, of plain models, of repeated measurements, of releases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...server.cost.calibration import Calibration, ErrorStats
from ...server.cost.evidence import RANGES, Point, Sample
from ..calibrate.accuracy import Accuracy, Coverage, Interval
from ..calibrate.comparison import APART
from .document import Table
from .releases import Release, Split

NONE = "-"
COUNTS = "rows / configurations / series"


def accuracies(release: Release, which: str) -> Table:
    """Return errors by group on "seen" or "unseen" series, the plain models' beside, and whether bands hold."""
    head = ("group", COUNTS, "mean by row", "median / p90", "mean by series", *release.plain, f"band holds: {COUNTS}")
    rows = [
        (name, *_accuracy(found), *(_mean(groups.get(name), which) for groups in release.plain.values()), held(found))
        for name, each in (release.totals | release.groups).items()
        if (found := getattr(each, which)) is not None
    ]
    return Table(head, tuple(rows))


def left_outs(release: Release) -> Table:
    """Return errors of fits without the predicted part, of configurations that the calibration keeps."""
    head = ("steps", COUNTS, "mean by row", "median / p90", "mean by series", f"band holds: {COUNTS}")
    return Table(head, tuple((name, *_accuracy(each), held(each)) for name, each in release.left_out.items()))


def fit_errors(calibration: Calibration) -> Table:
    """Return errors by group as the fit found them: without each part in turn, and of plain models."""
    groups = {name: each for name, each in calibration.errors.items() if not any(word in name for word in APART)}
    ways = tuple(dict.fromkeys(way for each in groups.values() for way in each.left_out))
    plain = calibration.baselines
    rows = [
        (
            name,
            str(each.n),
            NONE if each.series is None else with_interval(each.series.mean, (each.series.low, each.series.high)),
            *(stats(each.left_out.get(way)) for way in ways),
            *(stats(found.get(name)) for found in plain.values()),
        )
        for name, each in groups.items()
    ]
    return Table(("group", "n", "mean by unseen series", *(f"unseen {way}" for way in ways), *plain), tuple(rows))


def measured(calibration: Calibration) -> Table:
    """Return the ranges of the measured configurations, by phase, chip and kind of model."""
    kinds: dict[tuple[str, str, str], list[Sample]] = {}
    for each in calibration.evidence.samples:
        kind = "MoE" if each.point.has_experts else "dense"
        kinds.setdefault((each.point.phase, each.point.chip, kind), []).append(each)
    rows = []
    for key in sorted(kinds):
        own = kinds[key]
        counts = str(len(own)), str(sum(each.num_rows for each in own))
        rows.append((*key, *counts, *(_range([each.point for each in own], name) for name in RANGES)))
    return Table(("phase", "chip", "", "steps", "rows", *(label for label, _ in RANGES.values())), tuple(rows))


def _range(points: Sequence[Point], name: str) -> str:
    values = [getattr(point, name) for point in points]
    least, most = (f"{value:.3g}" if isinstance(value, float) else f"{value:,}" for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def noise(release: Release) -> Table:
    """Return how far published figures of one setup differ, and what a constant of each series would leave."""
    rows = [
        (each.phase, each.between, f"{each.pairs} pairs", *map(percent, (each.mean, each.median, each.largest)))
        for each in release.spreads
    ]
    for left in release.scatters:
        within = f"{left.rows} rows, {left.series} series"
        rows.append((left.phase, "left by a constant of each series", within, percent(left.error), NONE, NONE))
    return Table(("phase", "between", "of", "mean", "median", "largest"), tuple(sorted(rows)))


def history(found: Sequence[Release]) -> Table:
    """Return a row for each release: errors on series left out of its fit, and on series published later."""
    head = ("release", "calibration", "phase", "series", "mean by series", "half within", "band holds: rows")
    rows = [
        (each.name, each.calibration, f"{name}, {kind}", *cells)
        for each in found
        for name, kind, cells in _history(each)
    ]
    return Table(head, tuple(rows))


def _history(release: Release) -> list[tuple[str, str, tuple[str, ...]]]:
    left: Mapping[str, Accuracy | None] = {name: each for name, each in release.left_out.items() if ", " not in name}
    unseen: Mapping[str, Accuracy | None] = {name: each.unseen for name, each in release.totals.items()}
    kinds = (("left out of the fit", left), ("not seen by any", unseen))
    return [(name, kind, _brief(each)) for kind, of in kinds for name, each in of.items() if each is not None]


def _brief(found: Accuracy) -> tuple[str, ...]:
    rows = NONE if found.within is None else percent(found.within.rows)
    means = with_interval(found.by_series.mean, found.series_interval)
    return str(found.series), means, percent(found.by_series.median), rows


def _accuracy(found: Accuracy) -> tuple[str, ...]:
    return (
        f"{found.rows} / {found.configurations} / {found.series}",
        with_interval(found.by_row.mean, found.row_interval),
        f"{percent(found.by_row.median)} / {percent(found.by_row.p90)}",
        with_interval(found.by_series.mean, found.series_interval),
    )


def held(found: Accuracy) -> str:
    """Return the shares of figures within their bands."""
    return NONE if found.within is None else shares(found.within)


def shares(found: Coverage) -> str:
    """Return shares of rows with their interval, of configurations and of series."""
    rest = (percent(each) for each in (found.configurations, found.series))
    return " / ".join((with_interval(found.rows, found.interval), *rest))


def _mean(found: Split | None, which: str) -> str:
    accuracy = None if found is None else getattr(found, which)
    return NONE if accuracy is None else percent(accuracy.by_row.mean)


def stats(found: ErrorStats | None) -> str:
    """Return median and 90th percentile of sizes, and the bias."""
    return NONE if found is None else f"{percent(found.median)} / {percent(found.p90)}, {found.bias:+.0%}"


def with_interval(value: float, interval: Interval | None) -> str:
    """Return a share with its 90 % interval."""
    return percent(value) + ("" if interval is None else f" ({interval[0]:.0%} to {interval[1]:.0%})")


def percent(share: float) -> str:
    """Return a share, with a decimal if it is small."""
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
