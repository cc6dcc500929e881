"""Errors of a calibration on load tests: simulated throughput, TTFT and time per token by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import exp

import numpy as np

from ...server.config.formats import StackName
from ...server.cost.calibration import Calibration, ErrorStats, GroupError
from ...server.cost.evidence import Point, Sample, Series
from .host_fit import STRUCTURES, Responses, fit_hosts
from .load_figures import QUANTITIES, Quantity
from .load_generators import Clients
from .published import PublishedRow
from .serving import ServingCoefficients, ServingRow, serving_rows
from .step_errors import series_error, stats_of

FIGURE_UNITS: dict[Quantity, str] = {"throughput": "tokens/s", "ttft": "ms", "itl": "ms"}
NO_HOST, FACTOR = "no host", "constant factor"  # plain models of load tests
FITTED = "fitted"
Key = tuple[str, Quantity]  # row and quantity
LeftOut = dict[Key, float]
Without = Callable[[Series], Calibration]  # a fit of steps without a series


@dataclass(frozen=True, slots=True)
class ServingError:
    """A compared figure of a load test. `left_out` is the error of fits without the row's series."""

    row_id: str
    group: str  # serving_inf2 of throughput, serving_ttft_inf2 and serving_itl_inf2 of times; see `_group`
    model: str
    series: Series
    point: Point
    unit: str
    measured: float
    predicted: float
    error: float
    left_out: float | None = None


@dataclass(frozen=True, slots=True)
class ServingOutcome:
    """Errors over a table's load tests, with the coefficients used, the rows skipped, and samples for bands."""

    coefficients: ServingCoefficients
    errors: tuple[ServingError, ...]
    skipped: tuple[tuple[str, str], ...]
    baselines: dict[str, dict[str, ErrorStats | None]] = field(default_factory=dict)
    samples: tuple[Sample, ...] = ()

    @property
    def groups(self) -> dict[str, GroupError]:
        """Statistics of errors by group."""
        names = sorted({error.group for error in self.errors})
        return {name: _group_error([error for error in self.errors if error.group == name]) for name in names}


def check_serving(
    rows: Sequence[PublishedRow], calibration: Calibration, stack: StackName | None = None
) -> ServingOutcome:
    """Return errors with the calibration's hosts and clients."""
    found, skipped = serving_rows(rows, calibration, stack)
    used = ServingCoefficients(calibration.hosts, Clients(**calibration.clients))
    errors = [error for row in found for error in _errors(row, used, {})]
    return ServingOutcome(used, tuple(errors), tuple(skipped))


def calibrate_serving(rows: Sequence[PublishedRow], calibration: Calibration, without: Without) -> ServingOutcome:
    """Fit over the step times of `calibration`, and repeat choice and fit without each series.

    A fit without a series also uses step times of the calibration `without` it. Rows that other rows contradict are
    compared, but no fit uses them.
    """
    found, skipped = serving_rows(rows, calibration)
    sound = [row for row in found if not row.contradiction]
    fit = fit_hosts(sound)
    unseen: dict[str, LeftOut] = {name: {} for name in (FITTED, NO_HOST, FACTOR)}
    for series in dict.fromkeys(row.series for row in found):
        if fit.responses is not None and any(row.series != series for row in sound):
            rest = without(series)
            left_out = _errors_without(series, [row.under(rest) for row in found], fit.responses)
            unseen = {name: unseen[name] | left_out[name] for name in unseen}
    errors = [error for row in found for error in _errors(row, fit.coefficients, unseen[FITTED])]
    groups: dict[Key, str] = {(row.row.row_id, name): _group(row, name) for row in found for name in row.measured}
    plain = {name: _by_group(groups, unseen[name]) for name in (NO_HOST, FACTOR)}
    samples = samples_of(sound, unseen[FITTED])
    return ServingOutcome(fit.coefficients, tuple(errors), tuple(skipped), plain, samples)


def _errors_without(series: Series, rows: Sequence[ServingRow], responses: Responses) -> dict[str, LeftOut]:
    """Return errors of the rows of `series`, by the fit and by plain models that had not seen it.

    `rows` are all rows with step times of a fit without the series.
    """
    seen = responses.under([row for row in rows if not row.contradiction])
    own = [row for row in rows if row.series == series]
    kept = np.isin(seen.series, [number for name, number in seen.numbers.items() if name != series])
    bare = seen.fit(STRUCTURES[0], kept)
    hostless = _relative(own, seen.coefficients(bare))
    off = seen.errors(bare, kept)
    names = seen.names[kept]
    factors = {name: exp(-float(np.median(off[names == name]))) for name in QUANTITIES if name in names}
    return {
        FITTED: _relative(own, seen.coefficients(seen.fit(seen.choose(kept), kept))),
        NO_HOST: hostless,
        FACTOR: {key: (1 + error) * factors.get(key[1], 1.0) - 1 for key, error in hostless.items()},
    }


def _relative(rows: Iterable[ServingRow], coefficients: ServingCoefficients) -> LeftOut:
    found: LeftOut = {}
    for row in rows:
        predicted = row.figures(coefficients)
        found |= {(row.row.row_id, name): predicted[name] / value - 1 for name, value in row.measured.items()}
    return found


def _errors(row: ServingRow, fitted: ServingCoefficients, unseen: LeftOut) -> list[ServingError]:
    predicted = row.figures(fitted)
    return [
        ServingError(
            row_id=row.row.row_id,
            group=_group(row, name),
            model=row.row.texts["model"],
            series=row.series,
            point=row.point(name),
            unit=FIGURE_UNITS[name],
            measured=measured,
            predicted=predicted[name],
            error=predicted[name] / measured - 1,
            left_out=unseen.get((row.row.row_id, name)),
        )
        for name, measured in row.measured.items()
    ]


def _group(row: ServingRow, quantity: Quantity) -> str:
    """Return a group such as serving_inf2 or serving_ttft_inf2.

    Contradicted rows have their own group, and so has TTFT of saturated tests, which depends on the test's length more
    than on the server.
    """
    kind = "" if quantity == "throughput" else f"{quantity}_"
    apart = "contradicted_" if row.contradiction else "saturated_" if row.is_saturated and quantity == "ttft" else ""
    return f"serving_{kind}{apart}{row.group}"


def _by_group(groups: dict[Key, str], errors: LeftOut) -> dict[str, ErrorStats | None]:
    found: dict[str, list[float]] = {}
    for key, group in groups.items():
        if key in errors:
            found.setdefault(group, []).append(errors[key])
    return {group: stats_of(np.array(own)) for group, own in sorted(found.items())}


def _group_error(errors: Sequence[ServingError]) -> GroupError:
    every = stats_of(np.array([error.error for error in errors]))
    held = np.array([np.nan if error.left_out is None else error.left_out for error in errors])
    if np.isnan(held).any():
        return GroupError(len(errors), every)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(error.series for error in errors))}
    series = np.array([numbers[error.series] for error in errors])
    return GroupError(len(errors), every, {"series": stats_of(held)}, series_error(held, series))


def samples_of(rows: Sequence[ServingRow], unseen: LeftOut) -> tuple[Sample, ...]:
    """Return measured over predicted figures, by fits without the series, as the median over tests of equal load."""
    alike: dict[tuple[object, ...], list[tuple[ServingRow, Point, float]]] = {}
    for row in rows:
        for name in row.fitted:
            error = unseen.get((row.row.row_id, name))
            if error is not None:
                alike.setdefault((row.series, row.point(name), row.load), []).append(
                    (row, row.point(name), 1 / (1 + error))
                )
    return tuple(_sample(own) for own in alike.values())


def _sample(tests: Sequence[tuple[ServingRow, Point, float]]) -> Sample:
    row, point, _ = tests[0]
    error = float(np.median([ratio for _, _, ratio in tests]))
    return Sample(point, row.row.texts["model"], row.source, len(tests), error, row.row.sdk)
