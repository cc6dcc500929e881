"""The load tests of a calibration: errors of simulated throughput, TTFT and time per token by row. Prints nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from server.cost.calibration import Calibration, ServingCoefficients
from server.planner.calibrate.pattern_search import fit_serving
from server.planner.calibrate.published import PublishedRow
from server.planner.calibrate.serving import QUANTITIES, ServingRow, serving_rows

UNITS = {"throughput": "tokens/s", "ttft": "ms", "itl": "ms"}


@dataclass(frozen=True, slots=True)
class ServingError:
    """A compared figure of a load test. `left_out` is the error of a fit that never saw the row's model."""

    row_id: str
    group: str  # serving_inf2 of throughput, serving_ttft_inf2 and serving_itl_inf2 of times; see `_group`
    model: str
    unit: str
    measured: float
    predicted: float
    error: float
    left_out: float | None = None


@dataclass(frozen=True, slots=True)
class ServingOutcome:
    """Errors over a table's load tests, with the coefficients used and the rows skipped."""

    coefficients: ServingCoefficients
    errors: tuple[ServingError, ...]
    skipped: tuple[tuple[str, str], ...]


def check_serving(rows: Sequence[PublishedRow], calibration: Calibration) -> ServingOutcome:
    """Errors of the calibration's own coefficients."""
    found, skipped = serving_rows(rows, calibration)
    errors = [error for row in found for error in _errors(row, calibration.serving, None)]
    return ServingOutcome(calibration.serving, tuple(errors), tuple(skipped))


def calibrate_serving(rows: Sequence[PublishedRow], calibration: Calibration) -> ServingOutcome:
    """A fit over `calibration`'s step times, and for each model one that saw no row of its dimensions.

    Rows that others of the table contradict are compared, and fitted to by nobody.
    """
    found, skipped = serving_rows(rows, calibration)
    sound = [row for row in found if not row.contradiction]
    fitted = fit_serving(sound)
    errors: list[ServingError] = []
    for shape in dict.fromkeys(row.shape for row in found):
        others = [row for row in sound if row.shape != shape]
        unseen = fit_serving(others) if others else None
        errors += [error for row in found if row.shape == shape for error in _errors(row, fitted, unseen)]
    return ServingOutcome(fitted, tuple(errors), tuple(skipped))


def _errors(row: ServingRow, fitted: ServingCoefficients, unseen: ServingCoefficients | None) -> list[ServingError]:
    predicted = dict(zip(QUANTITIES, row.predict(fitted), strict=True))
    held = None if unseen is None else dict(zip(QUANTITIES, row.predict(unseen), strict=True))
    return [
        ServingError(
            row_id=row.row.row_id,
            group=_group(row, name),
            model=row.row.texts["model"],
            unit=UNITS[name],
            measured=measured,
            predicted=predicted[name],
            error=predicted[name] / measured - 1,
            left_out=None if held is None else held[name] / measured - 1,
        )
        for name, measured in row.measured.items()
    ]


def _group(row: ServingRow, quantity: str) -> str:
    """Such as serving_inf2, serving_ttft_inf2; serving_contradicted_inf2 of rows that the table itself contradicts."""
    kind = "" if quantity == "throughput" else f"{quantity}_"
    return f"serving_{kind}{'contradicted_' if row.contradiction else ''}{row.group}"
