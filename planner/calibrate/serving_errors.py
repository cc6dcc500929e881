"""Errors of a calibration on load tests: simulated throughput, TTFT and time per token by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...server.config.formats import StackName
from ...server.cost.calibration import Calibration, GroupError
from .load_generators import Clients
from .pattern_search import fit_serving
from .published import PublishedRow
from .serving import QUANTITIES, ServingCoefficients, ServingRow, serving_rows
from .step_errors import stats_of

UNITS = {"throughput": "tokens/s", "ttft": "ms", "itl": "ms"}
LeftOut = dict[str, dict[tuple[str, str], float]]  # error by what was unseen, then by row and quantity


@dataclass(frozen=True, slots=True)
class ServingError:
    """A compared figure of a load test. `left_out` is the error of fits without the row's source."""

    row_id: str
    group: str  # serving_inf2 of throughput, serving_ttft_inf2 and serving_itl_inf2 of times; see `_group`
    model: str
    unit: str
    measured: float
    predicted: float
    error: float
    left_out: float | None = None
    left_out_model: float | None = None


@dataclass(frozen=True, slots=True)
class ServingOutcome:
    """Errors over a table's load tests, with the coefficients used and the rows skipped."""

    coefficients: ServingCoefficients
    errors: tuple[ServingError, ...]
    skipped: tuple[tuple[str, str], ...]

    @property
    def groups(self) -> dict[str, GroupError]:
        """Statistics of errors by group."""
        names = sorted({error.group for error in self.errors})
        return {name: _group_error([error for error in self.errors if error.group == name]) for name in names}


def check_serving(
    rows: Sequence[PublishedRow], calibration: Calibration, stack: StackName | None = None
) -> ServingOutcome:
    """Return errors with the calibration's hosts and clients, or the defaults if it has none."""
    found, skipped = serving_rows(rows, calibration, stack)
    start = ServingCoefficients()
    hosts = start.hosts | dict(calibration.hosts)
    used = ServingCoefficients(hosts, Clients(**calibration.clients))
    errors = [error for row in found for error in _errors(row, used, {})]
    return ServingOutcome(used, tuple(errors), tuple(skipped))


def calibrate_serving(
    rows: Sequence[PublishedRow], calibration: Calibration, without: Callable[[str], Calibration]
) -> ServingOutcome:
    """Fit over the step times of `calibration`, and repeat the fit without each model and without each source.

    A fit without a source also uses step times of the calibration `without` it. Rows that other rows contradict are
    compared, but no fit uses them.
    """
    found, skipped = serving_rows(rows, calibration)
    fitted = fit_serving(_sound(found))
    unseen: LeftOut = {"model": {}, "source": {}}
    for shape in dict.fromkeys(row.shape for row in found):
        others = fit_serving([row for row in _sound(found) if row.shape != shape])
        unseen["model"] |= _relative((row for row in found if row.shape == shape), others)
    for source in dict.fromkeys(row.source for row in found):
        seen, _ = serving_rows(rows, without(source))
        others = fit_serving([row for row in _sound(seen) if row.source != source])
        unseen["source"] |= _relative((row for row in seen if row.source == source), others)
    errors = [error for row in found for error in _errors(row, fitted, unseen)]
    return ServingOutcome(fitted, tuple(errors), tuple(skipped))


def _sound(rows: Sequence[ServingRow]) -> list[ServingRow]:
    return [row for row in rows if not row.contradiction]


def _relative(rows: Iterable[ServingRow], coefficients: ServingCoefficients) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for row in rows:
        predicted = dict(zip(QUANTITIES, row.predict(coefficients), strict=True))
        found |= {(row.row.row_id, name): predicted[name] / value - 1 for name, value in row.measured.items()}
    return found


def _errors(row: ServingRow, fitted: ServingCoefficients, unseen: LeftOut) -> list[ServingError]:
    predicted = dict(zip(QUANTITIES, row.predict(fitted), strict=True))
    return [
        ServingError(
            row_id=row.row.row_id,
            group=_group(row, name),
            model=row.row.texts["model"],
            unit=UNITS[name],
            measured=measured,
            predicted=predicted[name],
            error=predicted[name] / measured - 1,
            left_out=unseen.get("source", {}).get((row.row.row_id, name)),
            left_out_model=unseen.get("model", {}).get((row.row.row_id, name)),
        )
        for name, measured in row.measured.items()
    ]


def _group(row: ServingRow, quantity: str) -> str:
    """Return a group such as serving_inf2 or serving_ttft_inf2.

    Contradicted rows have their own group, and so has TTFT of saturated tests, which depends on the test's length more
    than on the server.
    """
    kind = "" if quantity == "throughput" else f"{quantity}_"
    apart = "contradicted_" if row.contradiction else "saturated_" if row.is_saturated and quantity == "ttft" else ""
    return f"serving_{kind}{apart}{row.group}"


def _group_error(errors: Sequence[ServingError]) -> GroupError:
    held = {"source": [error.left_out for error in errors], "model": [error.left_out_model for error in errors]}
    every = stats_of(np.array([error.error for error in errors]))
    if None in held["source"]:
        return GroupError(len(errors), every)
    return GroupError(len(errors), every, {way: stats_of(np.array(values)) for way, values in held.items()})
