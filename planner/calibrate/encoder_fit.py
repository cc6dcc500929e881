"""Fit of an encoder's pass to published rows: terms chosen and scored without the predicted rows, beside plain models.

Terms of a pass are priced by nothing else, so this fit and the fit of steps do not touch each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ...server.cost.calibration import ErrorStats, GroupError
from ...server.cost.evidence import Evidence, Sample
from .fit import NAMES, Problem, Vector, as_coefficients, as_vector
from .observation import Observation
from .selection import Folds, choose_terms, left_out, nested_errors
from .step_errors import RowError, StepOutcome, stats_of

TWO_TERMS = ("encode_matmul", "encode_layer")
TWO, ROOFLINE = "two coefficients", "roofline"
PREFIX = "encode_"  # of the terms of a pass
LEAST_MODELS, LEAST_RELEASES = 3, 2  # that a fit needs: sizes of layers, releases


def encoder_folds(observations: Sequence[Observation]) -> Folds:
    """Return the ways to leave passes out.

    A series is one release's passes of one chip and one size of layers. A model is a size of layers: BERT and RoBERTa
    are one.
    """
    sizes = [(o.shape.num_layers, o.shape.hidden_size) for o in observations]
    chips = [o.point.chip for o in observations]
    releases = [o.source for o in observations]
    keys: dict[str, Sequence[Hashable]] = {
        "series": list(zip(chips, releases, sizes, strict=True)),
        "source": releases,
        "model": sizes,
        "chip": chips,
    }
    return Folds.by(keys)


def calibrate_encoders(observations: Sequence[Observation]) -> StepOutcome:
    """Choose the terms of a pass and fit them; errors are of fits that had not seen the series, release, model, chip.

    Raises SettingsError if scipy is not installed.
    """
    problem, folds = Problem(observations), encoder_folds(observations)
    rows = np.ones(len(observations), dtype=np.bool_)
    fitted = problem.fit(choose_terms(problem, folds, rows), rows)
    unseen = nested_errors(problem, folds, rows)
    two = tuple(NAMES.index(name) for name in TWO_TERMS)
    plain = {
        TWO: left_out(problem, folds.labels["model"], rows, lambda kept: problem.fit(two, kept)),
        ROOFLINE: roofline(problem),
    }
    coefficients = {name: value for name, value in as_coefficients(fitted).items() if name.startswith(PREFIX)}
    return _outcome(observations, coefficients, unseen, plain)


def check_encoders(observations: Sequence[Observation], coefficients: dict[str, float]) -> StepOutcome:
    """Return the errors of given coefficients, without a fit."""
    return _outcome(observations, coefficients, {}, {ROOFLINE: roofline(Problem(observations))})


def roofline(problem: Problem) -> Vector:
    """Return errors of the data sheet alone: the longer of a pass's operations and its weights, at their peaks."""
    at_peak = [problem.work[:, NAMES.index(name)] for name in ("encode_matmul", "encode_weights")]
    return np.asarray(np.maximum(*at_peak) / problem.seconds - 1)


def _outcome(
    observations: Sequence[Observation],
    coefficients: dict[str, float],
    unseen: dict[str, Vector],
    plain: dict[str, Vector],
) -> StepOutcome:
    names = np.array([o.group for o in observations])
    groups = sorted({o.group for o in observations})
    errors = Problem(observations).errors(as_vector(coefficients), np.ones(len(names), dtype=np.bool_))
    series = unseen.get("series", np.full(len(names), np.nan))
    return StepOutcome(
        coefficients=coefficients,
        groups={
            name: GroupError(
                int((names == name).sum()),
                stats_of(errors[names == name]),
                {way: _stats(found[names == name]) for way, found in unseen.items()},
            )
            for name in groups
        },
        rows=tuple(_row(o, *each) for o, *each in zip(observations, errors.tolist(), series.tolist(), strict=True)),
        baselines={way: {name: _stats(found[names == name]) for name in groups} for way, found in plain.items()},
        evidence=_evidence(observations, series),
    )


def _stats(errors: Vector) -> ErrorStats | None:
    """Return statistics; None when a fit without the rows had no other rows."""
    return None if np.isnan(errors).any() else stats_of(errors)


def _row(observation: Observation, error: float, left: float) -> RowError:
    return RowError(
        row_id=observation.row_id,
        group=observation.group,
        model=observation.model,
        tp=observation.point.tp,
        measured_ms=observation.seconds * 1e3,
        predicted_ms=observation.seconds * (1 + error) * 1e3,
        error=error,
        left_out=left if np.isfinite(left) else None,
    )


def _evidence(observations: Sequence[Observation], unseen: Vector) -> Evidence:
    """Return for each configuration of a series the median of measured over predicted, by a fit without the series."""
    alike: dict[Hashable, list[int]] = {}
    for index, o in enumerate(observations):
        if np.isfinite(unseen[index]):
            sizes = o.shape.num_layers, o.shape.hidden_size
            alike.setdefault((o.source, o.point.chip, sizes, o.point.batch, o.point.positions), []).append(index)
    samples = []
    for own in alike.values():
        first = observations[own[0]]
        ratio = float(np.median(1 / (1 + unseen[own])))
        samples.append(Sample(first.point, first.model, first.source, len(own), ratio))
    return Evidence(samples)
