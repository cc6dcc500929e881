"""Fit to the times of steps, with errors of fits that had not seen the predicted rows, and of plain models.

Errors are (predicted - measured) / measured; statistics are of their absolute values, a bias is their median. A
calibration must beat the plain models on the same unseen rows; they are only reported.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...server.cost.calibration import ErrorStats, GroupError, SeriesError
from ...server.cost.evidence import Evidence, Sample
from .contradictions import contradicted_steps
from .fit import NAMES, Problem, Vector, as_coefficients, as_vector
from .observation import Observation
from .selection import Folds, Labels, Rows, left_out, mean_fit, nested_errors

# Bytes of weights and cache, layers and slots for a decode step; operations and calls for a prompt.
SIX_TERMS = ("weights", "kv", "layer_launch", "slot_layer", "prefill_matmul", "prefill_call")
COMPUTE = ("decode_matmul", "prefill_matmul", "attention", "encode_matmul")
MEMORY = ("weights", "prefill_weights", "kv", "encode_weights")


def six_coefficients(problem: Problem, labels: Labels, rows: Rows) -> Vector:
    """Return errors of a fit of six coefficients to the rows with another label."""
    terms = tuple(NAMES.index(name) for name in SIX_TERMS)
    return left_out(problem, labels, rows, lambda kept: problem.fit(terms, kept))


def roofline(problem: Problem) -> Vector:
    """Return errors of the data sheet alone: the longer of all operations and all bytes at their peaks."""
    compute, memory = (
        problem.work[:, [NAMES.index(name) for name in names]].sum(axis=1) for names in (COMPUTE, MEMORY)
    )
    return np.asarray(np.maximum(compute, memory) / problem.seconds - 1)


BOOTSTRAPS, BOOTSTRAP_SEED = 2000, 7
SIX, ROOFLINE, REPEATS = "six coefficients", "roofline", "repeated runs"


@dataclass(frozen=True, slots=True)
class RowError:
    """A compared time. `left_out` is the error of a fit without the row's series; None in a check."""

    row_id: str
    group: str
    series: str
    model: str
    tp: int
    measured_ms: float
    predicted_ms: float
    error: float
    left_out: float | None = None


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Coefficients, and their errors."""

    coefficients: dict[str, float]
    groups: dict[str, GroupError]
    rows: tuple[RowError, ...]
    baselines: dict[str, dict[str, ErrorStats | None]]  # by name, then by group; of rows from unseen series
    evidence: Evidence


def group_names(observations: Sequence[Observation]) -> NDArray[np.str_]:
    """Return the group of each observation: such as decode_dense_inf2, or decode_contradicted_inf2."""
    contradicted = contradicted_steps(observations)
    names = []
    for index, observation in enumerate(observations):
        kind, *rest = observation.group.split("_")
        names.append("_".join((kind, "contradicted", rest[-1])) if index in contradicted else observation.group)
    return np.array(names, dtype=np.str_)


def calibrate_steps(observations: Sequence[Observation]) -> StepOutcome:
    """Fit coefficients to all observations but contradicted ones; errors are of fits without the series."""
    names, folds = group_names(observations), Folds.of(observations)
    problem, rows = Problem(observations), np.array(["contradicted" not in name for name in names])
    fitted = mean_fit(problem, folds, rows)
    unseen = nested_errors(problem, folds, rows)
    stats = {way: stats_by_group(names, errors) for way, errors in unseen.items()}
    every = np.ones(len(names), dtype=np.bool_)
    errors = problem.errors(fitted, every)
    groups = {
        name: GroupError(
            int((names == name).sum()),
            stats_of(errors[names == name]),
            {w: stats[w][name] for w in stats},
            series_error(unseen["series"][names == name], problem.series[names == name]),
        )
        for name in sorted(set(names.tolist()))
    }
    plain = {
        SIX: stats_by_group(names, six_coefficients(problem, folds.labels["series"], rows)),
        ROOFLINE: stats_by_group(names, np.where(rows, roofline(problem), np.nan)),
        REPEATS: repeat_spread(observations, names),
    }
    coefficients = as_coefficients(fitted)
    evidence = evidence_of(observations, unseen["series"], lambda o: (*o.setup, o.point))
    return StepOutcome(coefficients, groups, row_errors(observations, names, errors, unseen["series"]), plain, evidence)


def check_steps(observations: Sequence[Observation], coefficients: dict[str, float], evidence: Evidence) -> StepOutcome:
    """Return errors of given coefficients, without a fit."""
    if not observations:
        return StepOutcome(coefficients, {}, (), {}, evidence)
    names, problem = group_names(observations), Problem(observations)
    errors = problem.errors(as_vector(coefficients), np.ones(len(names), dtype=np.bool_))
    groups = {
        name: GroupError(int((names == name).sum()), stats_of(errors[names == name]))
        for name in sorted(set(names.tolist()))
    }
    plain = {
        ROOFLINE: stats_by_group(names, roofline(problem)),
        REPEATS: repeat_spread(observations, names),
    }
    return StepOutcome(coefficients, groups, row_errors(observations, names, errors, None), plain, evidence)


def coefficients_without(observations: Sequence[Observation], series: tuple[str, int, str]) -> dict[str, float]:
    """Return coefficients by a fit to the observations of all other series (source, release and model)."""
    folds, problem = Folds.of(observations), Problem(observations)
    rows = np.array([o.series != series for o in observations]) & np.array(
        ["contradicted" not in name for name in group_names(observations)]
    )
    return as_coefficients(mean_fit(problem, folds, rows))


def stats_by_group(names: NDArray[np.str_], errors: Vector) -> dict[str, ErrorStats | None]:
    """Return statistics by group; None for a group with unpredicted rows."""
    own = {name: errors[names == name] for name in sorted(set(names.tolist()))}
    return {name: None if np.isnan(found).any() else stats_of(found) for name, found in own.items()}


def repeat_spread(observations: Sequence[Observation], names: NDArray[np.str_]) -> dict[str, ErrorStats | None]:
    """Return the spread of repeated times of one step from several sources or releases around their median.

    No model of steps can be better. None for a group without such steps.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    for index, o in enumerate(observations):
        work = tuple(f"{amount:.3g}" for name, amount in o.work.items() if not name.startswith("old"))
        alike.setdefault((names[index], o.shape, o.point, work), []).append(index)
    found: dict[str, list[float]] = {name: [] for name in sorted(set(names.tolist()))}
    for own in alike.values():
        if len({(observations[i].source, observations[i].sdk) for i in own}) > 1:
            middle = float(np.median([observations[i].seconds for i in own]))
            found[str(names[own[0]])] += [observations[i].seconds / middle - 1 for i in own]
    return {name: stats_of(np.array(errors)) if errors else None for name, errors in found.items()}


def stats_of(errors: Vector) -> ErrorStats:
    """Return statistics of signed relative errors."""
    size = np.abs(errors)
    return ErrorStats(
        float(size.mean()), float(np.median(size)), float(np.quantile(size, 0.9)), float(np.median(errors))
    )


def series_error(errors: Vector, series: Labels) -> SeriesError | None:
    """Return the mean of series' mean absolute errors, with an interval from series drawn with replacement.

    None if an error is not known.
    """
    if np.isnan(errors).any():
        return None
    means = np.array([np.abs(errors[series == one]).mean() for one in np.unique(series)])
    drawn = np.random.default_rng(BOOTSTRAP_SEED).choice(means, (BOOTSTRAPS, len(means))).mean(axis=1)
    low, high = np.quantile(drawn, (0.05, 0.95))
    return SeriesError(len(means), float(means.mean()), float(low), float(high))


def evidence_of(
    observations: Sequence[Observation], unseen: Vector, configuration: Callable[[Observation], Hashable]
) -> Evidence:
    """Return for each configuration the median of measured over predicted by a fit without its series."""
    alike: dict[Hashable, list[int]] = {}
    for index, o in enumerate(observations):
        if np.isfinite(unseen[index]):
            alike.setdefault(configuration(o), []).append(index)
    samples = []
    for own in alike.values():
        first = observations[own[0]]
        ratio = float(np.median(1 / (1 + unseen[own])))
        samples.append(Sample(first.point, first.model, first.source, len(own), ratio, first.sdk))
    return Evidence(samples)


def row_errors(
    observations: Sequence[Observation], names: NDArray[np.str_], errors: Vector, unseen: Vector | None
) -> tuple[RowError, ...]:
    held = [None] * len(observations) if unseen is None else [float(e) if np.isfinite(e) else None for e in unseen]
    return tuple(
        RowError(
            row_id=o.row_id,
            group=str(name),
            series=f"{o.source} 2.{o.sdk} {o.model}",
            model=o.model,
            tp=o.point.tp,
            measured_ms=o.seconds * 1e3,
            predicted_ms=o.seconds * (1 + float(error)) * 1e3,
            error=float(error),
            left_out=left,
        )
        for o, name, error, left in zip(observations, names, errors, held, strict=True)
    )
