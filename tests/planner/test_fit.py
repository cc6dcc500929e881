"""The fit: it finds what the data say, keeps what they do not, and bears with outliers."""

from __future__ import annotations

import sys
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from server.planner.calibrate.least_squares import Problem, fit

from server.cost.calibration import Coefficients
from server.errors import SettingsError
from server.planner.calibrate.observation import Observation, observe
from server.planner.calibrate.published import read_rows

SAMPLE = Path(__file__).parent / "published_sample.csv"
TRUTH = Coefficients(0.7, 0.45, 0.25, 0.4, 8e-5, 2e-5, 3e-6, 2e-6, 2e-12, 1.6e-9, 8e-3, 2e-5, 1.2e-10, 1.8e-6)


def published() -> list[Observation]:
    return [observation for row in read_rows(SAMPLE) for observation in observe(row)[0]]


def as_if(truth: Coefficients, observations: list[Observation]) -> list[Observation]:
    """The same steps on a part whose coefficients are known."""
    seconds = Problem(observations).predict(truth)
    return [replace(o, seconds=float(s)) for o, s in zip(observations, seconds, strict=True)]


def test_a_part_with_known_coefficients_is_found_again() -> None:
    observations = as_if(TRUTH, published())
    found = fit(observations)
    errors = Problem(observations).predict(found) / Problem(observations).seconds - 1
    assert np.abs(errors).max() < 0.05
    assert np.abs(errors).mean() < 0.01
    assert found.memory_efficiency == pytest.approx(TRUTH.memory_efficiency, rel=0.03)
    assert found.layer_launch_s == pytest.approx(TRUTH.layer_launch_s, rel=0.12)


def test_one_wild_row_moves_the_others_little() -> None:
    observations = as_if(TRUTH, published())
    wild = [replace(observations[0], seconds=20 * observations[0].seconds), *observations[1:]]
    before, after = (Problem(observations[1:]).predict(fit(data)) for data in (observations, wild))
    assert np.median(np.abs(after / before - 1)) < 0.03


def test_the_fit_is_better_than_its_start_and_the_same_each_time() -> None:
    observations = published()
    start = np.zeros(14)
    first, second = fit(observations), fit(list(observations))
    assert first == second

    def loss(c: Coefficients) -> float:
        return float(np.square(Problem(observations).residuals(np.log(astuple(c)), start)[: len(observations)]).sum())

    assert loss(first) < 0.8 * loss(Coefficients())


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(SettingsError, match=r"scipy.*neuronserve\[calibrate\]"):
        fit(published())


def test_what_the_data_do_not_touch_stays_where_physics_puts_it() -> None:
    static = [o for o in published() if not any(o.decode[4:6])]
    assert fit(static).kv_gather_s == pytest.approx(Coefficients().kv_gather_s)


def test_repetitions_of_one_setup_count_as_the_root_of_their_number() -> None:
    observations = published()[:1] * 9 + published()[1:2]
    assert Problem(observations).weights[:9] == pytest.approx(1 / 3)
