"""The mean of admissible fits, and errors of rows that neither a fit nor a choice has seen.

A candidate is a fit without up to two optional terms. Candidates are scored by series (source x release x model) that
they had not seen, each series counting once. The coefficients are the mean over the candidates that only chance may
part from the best; no winner is chosen. For the errors of left-out rows, all of this is repeated without them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ...server.cost.terms import DECODE_TERMS, ENCODE_TERMS, PREFILL_TERMS
from .fit import FIXED, NAMES, OPTIONAL, Problem, Vector
from .observation import Observation

LEAST_MODELS, LEAST_SOURCES = 3, 2  # that hold a term; with fewer it is not known
CHANCE = 1.64  # standard errors of the least score up to which another may be the better one: its 90 % interval
MOST_DROPPED = 2
NUM_FOLDS = 6  # of series, for the scores of candidates
WORST = 1.0  # largest error that counts in a score

Rows = NDArray[np.bool_]
Labels = NDArray[np.int64]  # fold of each row
Terms = tuple[int, ...]
Fit = Callable[[Rows], Vector]
PHASES = tuple(tuple(NAMES.index(name) for name in terms) for terms in (DECODE_TERMS, PREFILL_TERMS, ENCODE_TERMS))


@dataclass(frozen=True, slots=True)
class Folds:
    """Labels of the rows by way to leave them out."""

    labels: dict[str, Labels]

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> Folds:
        return cls.by(
            {
                "series": [o.series for o in observations],
                "source": [o.source for o in observations],
                "model": [o.shape for o in observations],
            }
        )

    @classmethod
    def by(cls, keys: Mapping[str, Sequence[Hashable]]) -> Folds:
        """Return folds of the rows that have equal keys, by way."""
        return cls({way: _numbered(found) for way, found in keys.items()})


def _numbered(keys: Sequence[Hashable]) -> Labels:
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys])


def mean_fit(problem: Problem, folds: Folds, rows: Rows, ways: Sequence[str] = ("series",)) -> Vector:
    """Return the mean coefficients of the admissible candidates, each phase by its own candidates.

    Candidates are scored by what each of `ways` leaves out. Which terms are known follows from the models and sources
    of the whole table, and from no measured time.
    """
    known, held = _known_terms(problem, folds, np.ones(len(rows), dtype=np.bool_))
    candidates = _candidates(known)
    fits = [problem.fit(terms, rows, held) for terms in candidates]

    def unseen_by(terms: Terms) -> list[Vector]:
        folded = [folds.labels[way] % NUM_FOLDS for way in ways]
        return [left_out(problem, labels, rows, lambda kept: problem.fit(terms, kept, held)) for labels in folded]

    unseen = [unseen_by(terms) for terms in candidates]
    means = np.zeros(len(NAMES))
    for terms in PHASES:
        own = rows & _is_of(problem, terms) & np.isfinite(unseen[0]).all(axis=0)
        admissible = fits[:1]  # where no candidate can be scored: a table of one series
        if own.any():
            scores = [np.mean([_series_errors(problem, errors, own) for errors in found], axis=0) for found in unseen]
            best = min(scores, key=lambda score: float(score.mean()))
            most = best.mean() + CHANCE * best.std() / len(best) ** 0.5
            admissible = [fit for fit, score in zip(fits, scores, strict=True) if score.mean() <= most]
        means[list(terms)] = np.mean(admissible, axis=0)[list(terms)]
    return means


def _is_of(problem: Problem, terms: Terms) -> Rows:
    """Return which rows are of the phase with `terms`; both phases read cached positions and widen weights."""
    return np.asarray(problem.work[:, terms[0]] > 0)


def _known_terms(problem: Problem, folds: Folds, rows: Rows) -> tuple[Terms, Terms]:
    """Return the optional terms that enough models and sources hold, and the others that too few hold."""

    def counts(own: Rows) -> tuple[int, int]:
        return len(np.unique(folds.labels["model"][own])), len(np.unique(folds.labels["source"][own]))

    all_models, all_sources = counts(rows)  # a table of one model holds what it holds

    def is_known(term: int) -> bool:
        models, sources = counts(rows & (problem.work[:, term] > 0))
        return models >= min(LEAST_MODELS, all_models) and sources >= min(LEAST_SOURCES, all_sources)

    return tuple(filter(is_known, OPTIONAL)), tuple(term for term in FIXED if not is_known(term))


def _candidates(known: Terms) -> list[Terms]:
    """Return sets of terms: of each phase, all but up to MOST_DROPPED of the known optional ones."""
    phases = [_drops([term for term in known if term in own]) for own in PHASES]
    longest = max(map(len, phases))
    pairs = zip(*(drops + [drops[0]] * (longest - len(drops)) for drops in phases), strict=True)
    return [tuple(t for t in (*FIXED, *known) if not any(t in drop for drop in dropped)) for dropped in pairs]


def _drops(terms: Sequence[int]) -> list[Terms]:
    return [drop for count in range(MOST_DROPPED + 1) for drop in combinations(terms, count)]


def _series_errors(problem: Problem, errors: Vector, rows: Rows) -> Vector:
    """Return the mean absolute error of each series of `rows`."""
    size, series = np.minimum(np.abs(errors[rows]), WORST), problem.series[rows]
    counts = np.bincount(series)
    present = counts > 0
    return np.asarray(np.bincount(series, size)[present] / counts[present])


def left_out(problem: Problem, labels: Labels, rows: Rows, fit: Fit) -> Vector:
    """Return the error of each of `rows` by a fit to `rows` with other labels; NaN if there are none."""
    errors = np.full(len(labels), np.nan)
    for label in np.unique(labels[rows]):
        own = rows & (labels == label)
        kept = rows & ~own
        if kept.any():
            errors[own] = problem.errors(fit(kept), own)
    return errors


def nested_errors(
    problem: Problem, folds: Folds, rows: Rows, ways: Sequence[str] = (), scored: Sequence[str] = ("series",)
) -> dict[str, Vector]:
    """Return errors by way to leave rows out: each of `ways`, or all. Nothing has seen the predicted rows."""
    return {
        way: left_out(problem, folds.labels[way], rows, lambda kept: mean_fit(problem, folds, kept, scored))
        for way in ways or folds.labels
    }
