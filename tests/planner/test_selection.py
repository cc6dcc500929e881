"""The choice of terms, and errors only from fits that have not seen the predicted rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from neuronserve.planner.calibrate import selection
from neuronserve.planner.calibrate.fit import FIXED, NAMES, Problem, as_coefficients
from neuronserve.planner.calibrate.observation import Observation
from neuronserve.planner.calibrate.selection import Folds, left_out, mean_fit, nested_errors
from neuronserve.planner.calibrate.step_errors import SIX_TERMS, roofline, six_coefficients
from neuronserve.server.cost.terms import TERMS
from tests.planner.synthetic import SHAPES, SOURCES, TRUTH, bare, made_by, noisy, observations

STEPS = noisy(observations(), 0.03)


def fitted(steps: list[Observation]) -> dict[str, float]:
    return as_coefficients(mean_fit(Problem(steps), Folds.of(steps), np.ones(len(steps), dtype=np.bool_)))


def test_terms_that_make_the_times_are_found_and_those_that_do_not_are_little() -> None:
    found = fitted(STEPS)
    for name in ("slot_layer", "kv_gather"):
        assert found[name] == pytest.approx(TRUTH[name], rel=0.35), name
    steps = np.array([o.work.get("ring_collectives", 0.0) for o in STEPS]) * found.get("ring_collectives", 0.0)
    assert np.median(steps / [o.seconds for o in STEPS]) < 0.02


def test_a_term_that_few_models_or_sources_hold_is_not_fitted() -> None:
    """What it holds differs by whether it must be in a step: the start, or nothing."""
    first = next(iter(SHAPES))
    own = {"dequant", "kv_gather"}
    steps = [
        o if o.model == first else replace(o, work={k: v for k, v in o.work.items() if k not in own}) for o in STEPS
    ]
    found = fitted(noisy(made_by(TRUTH, steps), 0.03))
    assert found["dequant"] == TERMS["dequant"].start
    assert "kv_gather" not in found


def test_a_table_of_one_model_is_fitted_all_the_same() -> None:
    steps = [o for o in STEPS if o.model == next(iter(SHAPES))]
    assert fitted(steps)["weights"] == pytest.approx(TRUTH["weights"], rel=0.25)


def test_the_mean_is_of_fits_that_are_nearly_as_good_as_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "CHANCE", 0.0)
    best = fitted(STEPS)
    monkeypatch.setattr(selection, "CHANCE", 1e9)
    every = fitted(STEPS)
    assert best != every
    share = every["kv_gather"] / best["kv_gather"]
    assert 0.5 < share < 0.95, "a few of the candidates have none"


def test_folds_are_series_sources_and_models() -> None:
    folds = Folds.of(STEPS)
    assert {name: len(set(labels.tolist())) for name, labels in folds.labels.items()} == {
        "series": len(SOURCES) * len(SHAPES), "source": len(SOURCES), "model": len(SHAPES),
    }  # fmt: skip
    twins = [replace(STEPS[0], model="Llama-3-8B"), replace(STEPS[0], model="Meta-Llama-3-8B-Instruct")]
    assert set(Folds.of(twins).labels["model"].tolist()) == {0}, "models of equal dimensions are one"


def test_what_is_left_out_is_predicted_without_it() -> None:
    problem, labels = Problem(STEPS), Folds.of(STEPS).labels["model"]
    rows, seen = np.ones(len(STEPS), dtype=np.bool_), []

    def fit(kept: np.ndarray) -> np.ndarray:
        seen.append(set(labels[kept].tolist()))
        return problem.fit(FIXED, kept)

    errors = left_out(problem, labels, rows, fit)
    assert seen == [{1, 2}, {0, 2}, {0, 1}]
    assert np.isfinite(errors).all()


def test_a_single_source_has_nothing_to_be_predicted_by() -> None:
    alone = [replace(o, source="docs") for o in STEPS[:20]]
    errors = nested_errors(Problem(alone), Folds.of(alone), np.ones(20, dtype=np.bool_), ("source",))
    assert np.isnan(errors["source"]).all()


def test_rows_that_take_no_part_have_no_error() -> None:
    rows = np.arange(len(STEPS)) > 0
    problem, labels = Problem(STEPS), Folds.of(STEPS).labels["source"]
    errors = left_out(problem, labels, rows, lambda kept: problem.fit(FIXED, kept))
    assert np.isnan(errors[0])
    assert np.isfinite(errors[1:]).all()


@pytest.mark.parametrize("way", ["series", "source", "model"])
def test_no_choice_and_no_coefficient_sees_what_it_is_judged_by(way: str) -> None:
    """Absurd times in one fold leave predictions of that fold unchanged and change the others."""
    steps = bare(STEPS)
    folds = Folds.of(steps)
    own = folds.labels[way] == 0
    factors = np.random.default_rng(1).uniform(2.0, 30.0, len(steps))
    spoilt = [replace(o, seconds=o.seconds * f) if mine else o for o, f, mine in zip(steps, factors, own, strict=True)]
    rows = np.ones(len(steps), dtype=np.bool_)
    predicted = []
    for data in (steps, spoilt):
        problem = Problem(data)
        predicted.append((1 + nested_errors(problem, folds, rows, (way,))[way]) * problem.seconds)
    before, after = predicted
    assert after[own] == pytest.approx(before[own], rel=1e-12)
    assert np.abs(after[~own] / before[~own] - 1).max() > 0.05


def test_nested_errors_are_no_smaller_than_the_noise_and_no_worse_than_plain_models() -> None:
    steps = bare(STEPS)
    steps = noisy(made_by(TRUTH, steps), 0.03)
    problem, folds, rows = Problem(steps), Folds.of(steps), np.ones(len(steps), dtype=np.bool_)
    unseen = np.abs(nested_errors(problem, folds, rows, ("source",))["source"])
    assert 0.02 < unseen.mean() < 0.1
    assert unseen.mean() < 0.5 * np.abs(six_coefficients(problem, folds.labels["source"], rows)).mean()
    assert unseen.mean() < 0.5 * np.abs(roofline(problem)).mean()


def test_the_roofline_is_the_longer_of_bytes_and_operations_at_their_peaks() -> None:
    step = replace(STEPS[0], work={"weights": 2e-3, "kv": 1e-3, "decode_matmul": 1e-3, "slot_layer": 9.0}, seconds=6e-3)
    prompt = replace(step, work={"prefill_weights": 1e-3, "prefill_matmul": 4e-3, "attention": 5e-3})
    assert roofline(Problem([step, prompt])) == pytest.approx([3e-3 / 6e-3 - 1, 9e-3 / 6e-3 - 1])
    assert set(SIX_TERMS) <= set(NAMES)
