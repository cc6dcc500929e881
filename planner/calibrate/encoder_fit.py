"""Fit of an encoder's pass to published rows: terms and coefficients found without the predicted rows.

Terms of a pass are priced by nothing else, so this fit and the fit of steps do not touch each other.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ...server.cost.calibration import GroupError
from ...server.cost.evidence import Evidence
from ...server.cost.terms import ENCODE_TERMS
from .fit import NAMES, Problem, Vector, as_coefficients, as_vector
from .observation import Observation
from .selection import Folds, left_out, mean_fit, nested_errors
from .step_errors import (
    REPEATS,
    ROOFLINE,
    StepOutcome,
    evidence_of,
    repeat_spread,
    roofline,
    row_errors,
    series_error,
    stats_by_group,
    stats_of,
)

TWO = "two coefficients"
TWO_TERMS = ("encode_matmul", "encode_layer")


def encoder_folds(observations: Sequence[Observation]) -> Folds:
    """Return the ways to leave passes out: by series, release (the source of a pass), size of layers, and chip."""
    keys: dict[str, Sequence[Hashable]] = {
        "series": [o.series for o in observations],
        "source": [o.sdk for o in observations],
        "model": [o.model for o in observations],
        "chip": [o.point.chip for o in observations],
    }
    return Folds.by(keys)


def calibrate_encoders(observations: Sequence[Observation]) -> StepOutcome:
    """Fit the terms of a pass; errors are of fits that had not seen the series, release, model or chip.

    Raises SettingsError if scipy is not installed.
    """
    problem, folds = Problem(observations), encoder_folds(observations)
    rows = np.ones(len(observations), dtype=np.bool_)
    two = tuple(NAMES.index(name) for name in TWO_TERMS)
    coefficients = as_coefficients(mean_fit(problem, folds, rows, tuple(folds.labels)))
    return _outcome(
        observations,
        {name: value for name, value in coefficients.items() if name in ENCODE_TERMS},
        nested_errors(problem, folds, rows, scored=tuple(folds.labels)),
        {TWO: left_out(problem, folds.labels["series"], rows, lambda kept: problem.fit(two, kept))},
    )


def check_encoders(observations: Sequence[Observation], coefficients: dict[str, float]) -> StepOutcome:
    """Return the errors of given coefficients, without a fit."""
    return _outcome(observations, coefficients, {}, {})


def _outcome(
    observations: Sequence[Observation],
    coefficients: dict[str, float],
    unseen: dict[str, Vector],
    plain: dict[str, Vector],
) -> StepOutcome:
    names, problem = np.array([o.group for o in observations]), Problem(observations)
    errors = problem.errors(as_vector(coefficients), np.ones(len(names), dtype=np.bool_))
    stats = {way: stats_by_group(names, found) for way, found in unseen.items()}
    series = unseen.get("series")
    groups = {}
    for name in sorted(set(names.tolist())):
        own = names == name
        by_series = None if series is None else series_error(series[own], problem.series[own])
        groups[name] = GroupError(
            int(own.sum()), stats_of(errors[own]), {way: found[name] for way, found in stats.items()}, by_series
        )
    return StepOutcome(
        coefficients=coefficients,
        groups=groups,
        rows=row_errors(observations, names, errors, series),
        baselines={
            **{way: stats_by_group(names, found) for way, found in {**plain, ROOFLINE: roofline(problem)}.items()},
            REPEATS: repeat_spread(observations, names),
        },
        evidence=Evidence(())
        if series is None
        else evidence_of(observations, series, lambda o: o.setup),  # whatever its vocabulary
    )
