"""Choice of the optional terms of a cost model by rows that a fit has not seen, and errors that include the choice.

Terms are dropped one after another as long as predictions of left-out sources, models and degrees do not get worse: of
two equally good models the smaller one is kept. For the errors, the choice too is repeated without the predicted rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .fit import FIXED, OPTIONAL, Problem, Vector
from .observation import Observation

WORTH = 0.005  # a term stays if the mean error would grow by more than this share without it
WORST = 1.0  # largest error that counts in a score

Rows = NDArray[np.bool_]
Labels = NDArray[np.int64]  # fold of each row
Terms = tuple[int, ...]
Fit = Callable[[Rows], Vector]


@dataclass(frozen=True, slots=True)
class Folds:
    """Ways to leave rows out: by source, by model and by degree."""

    labels: dict[str, Labels]

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> Folds:
        return cls.by(
            {
                "source": [o.source for o in observations],
                "model": [o.shape for o in observations],
                "degree": [(o.point.chip, o.point.tp) for o in observations],
            }
        )

    @classmethod
    def by(cls, keys: Mapping[str, Sequence[Hashable]]) -> Folds:
        """Return folds of the rows that have equal keys, by way."""
        return cls({way: _numbered(found) for way, found in keys.items()})


def _numbered(keys: Sequence[Hashable]) -> Labels:
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys])


def choose_terms(problem: Problem, folds: Folds, rows: Rows) -> Terms:
    """Return the terms that predict left-out parts of `rows` best, without terms worth less than WORTH."""
    terms = (*FIXED, *OPTIONAL)
    score = _score(problem, folds, rows, terms)
    seen = {term for term in OPTIONAL if problem.work[rows, term].any()}  # no row decides on the others
    while True:
        trials = [tuple(t for t in terms if t != dropped) for dropped in terms if dropped in seen]
        if not trials:
            return terms
        scores = [_score(problem, folds, rows, trial) for trial in trials]
        least = int(np.argmin(scores))
        if scores[least] > score * (1 + WORTH):
            return terms
        terms, score = trials[least], min(score, scores[least])


def _score(problem: Problem, folds: Folds, rows: Rows, terms: Terms) -> float:
    """Return the mean absolute error of left-out rows, over all ways to leave rows out."""
    found = [left_out(problem, labels, rows, lambda kept: problem.fit(terms, kept)) for labels in folds.labels.values()]
    return float(np.mean([np.minimum(np.abs(errors[rows]), WORST).mean() for errors in found]))


def left_out(problem: Problem, labels: Labels, rows: Rows, fit: Fit) -> Vector:
    """Return the error of each of `rows` by a fit to `rows` with other labels; NaN if there are none."""
    errors = np.full(len(labels), np.nan)
    for label in np.unique(labels[rows]):
        own = rows & (labels == label)
        kept = rows & ~own
        if kept.any():
            errors[own] = problem.errors(fit(kept), own)
    return errors


def nested_errors(problem: Problem, folds: Folds, rows: Rows) -> dict[str, Vector]:
    """Return errors by way to leave rows out; terms and coefficients were both found without the predicted rows."""

    def fit(kept: Rows) -> Vector:
        return problem.fit(choose_terms(problem, folds, kept), kept)

    return {name: left_out(problem, labels, rows, fit) for name, labels in folds.labels.items()}
