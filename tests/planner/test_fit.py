"""The fit: it finds known coefficients, keeps undetermined ones, and resists outliers."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from neuronserve.planner.calibrate import fit
from neuronserve.planner.calibrate.fit import FIXED, NAMES, OPTIONAL, START, Problem, as_coefficients, as_vector
from neuronserve.planner.calibrate.observation import Observation
from neuronserve.server.cost.terms import ENCODE_TERMS, TERMS
from neuronserve.server.errors import SettingsError
from tests.planner.synthetic import TRUTH, made_by, noisy, observations

USED = tuple(NAMES.index(name) for name in TRUTH)
EVERY = (*FIXED, *OPTIONAL)
STEPS = observations()


def fitted(steps: list[Observation], terms: tuple[int, ...] = USED) -> fit.Vector:
    return Problem(steps).fit(terms, np.ones(len(steps), dtype=np.bool_))


def of_steps(values: fit.Vector) -> dict[str, float]:
    """Return the coefficients without those of passes, which steps say nothing of."""
    return {name: value for name, value in as_coefficients(values).items() if name not in ENCODE_TERMS}


def test_a_part_with_known_coefficients_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "PULL", 1e-4)  # nothing but the data has a say
    found = of_steps(fitted(STEPS))
    assert set(found) == set(TRUTH)
    for name, value in TRUTH.items():
        assert found[name] == pytest.approx(value, rel=0.01), name


def test_the_pull_towards_the_start_costs_a_percent_of_the_predictions() -> None:
    errors = np.abs(Problem(STEPS).errors(fitted(STEPS), np.ones(len(STEPS), dtype=np.bool_)))
    assert errors.mean() < 0.01
    assert errors.max() < 0.05


def test_terms_that_no_row_speaks_of_stay_at_their_start() -> None:
    found = as_coefficients(fitted(STEPS, EVERY))
    unseen = {name for name in NAMES if not any(o.work.get(name) for o in STEPS)}
    assert unseen >= {"expert_load", "expert_matmul", "old_launch", "old_kv_gather"}
    assert {name: found[name] for name in unseen} == pytest.approx({name: TERMS[name].start for name in unseen})


def test_no_part_is_faster_than_its_data_sheet() -> None:
    impossible = made_by(TRUTH | {"weights": 0.3, "attention": 0.1}, STEPS)
    found = of_steps(fitted(impossible))
    assert found["weights"] >= 1.0
    assert found["attention"] >= 1.5
    assert all(value >= TERMS[name].least for name, value in found.items())


def test_one_wild_row_moves_the_others_little() -> None:
    wild = [replace(STEPS[0], seconds=20 * STEPS[0].seconds), *STEPS[1:]]
    before, after = (Problem(STEPS).work[1:] @ fitted(data) for data in (STEPS, wild))
    assert np.median(np.abs(after / before - 1)) < 0.02
    assert np.abs(after / before - 1).max() < 0.12, "its series is one of twelve"


def test_the_fit_is_better_than_its_start_and_the_same_each_time() -> None:
    data = noisy(STEPS, 0.1)
    rows = np.ones(len(data), dtype=np.bool_)
    first, second = fitted(data), fitted(list(data))
    assert (first == second).all()
    problem = Problem(data)
    assert np.abs(problem.errors(first, rows)).mean() < 0.4 * np.abs(problem.errors(START, rows)).mean()


def test_rows_that_are_not_asked_for_have_no_say() -> None:
    rows = np.arange(len(STEPS)) % 3 > 0
    spoilt = [o if kept else replace(o, seconds=7.0) for o, kept in zip(STEPS, rows, strict=True)]
    assert (Problem(STEPS).fit(USED, rows) == Problem(spoilt).fit(USED, rows)).all()


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(SettingsError, match=r"scipy.*neuronserve\[calibrate\]"):
        fitted(STEPS)


def test_repetitions_of_one_setup_count_as_the_root_of_their_number() -> None:
    assert Problem(STEPS[:1] * 9 + STEPS[1:2]).weights[:9] == pytest.approx(1 / 3)


def test_terms_that_are_held_stay_at_their_start() -> None:
    held = (NAMES.index("dequant"),)
    found = as_coefficients(Problem(STEPS).fit(USED, np.ones(len(STEPS), dtype=np.bool_), held))
    assert found["dequant"] == TERMS["dequant"].start
    assert found["kv"] == pytest.approx(TRUTH["kv"], rel=0.2)


def test_a_long_sweep_with_an_error_of_its_own_bends_nothing() -> None:
    """The rows of one series that are all 30 % too slow: a row counts less, the more rows its series has."""
    sweep = [replace(o, source="sweep", seconds=1.3 * o.seconds, setup=(n,)) for n, o in enumerate(STEPS * 3)]
    plain, shared = fitted([*STEPS, *sweep]), fitted([*STEPS, *(replace(o, model="one") for o in sweep)])
    ratios = [np.median(Problem(STEPS).work @ found / Problem(STEPS).seconds) for found in (plain, shared)]
    assert 1.0 <= ratios[1] < ratios[0]


def test_names_and_vectors_are_the_same_coefficients() -> None:
    assert of_steps(as_vector(TRUTH)) == TRUTH
    assert set(as_coefficients(np.zeros(len(NAMES)))) == {NAMES[i] for i in FIXED}
