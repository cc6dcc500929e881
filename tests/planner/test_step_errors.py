"""A fit of steps with its errors: used rows, kept evidence, and the independence from a left-out source."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from neuronserve.planner.calibrate.observation import Observation
from neuronserve.planner.calibrate.step_errors import (
    REPEATS,
    ROOFLINE,
    SIX,
    StepOutcome,
    calibrate_steps,
    check_steps,
    coefficients_without,
    group_names,
    repeat_spread,
    stats_of,
)
from neuronserve.server.cost.evidence import Evidence
from tests.model_specs import with_depth
from tests.planner.synthetic import SOURCES, TRUTH, bare, made_by, noisy, observations

STEPS = noisy(made_by(TRUTH, bare(observations())), 0.03)


def with_twin(steps: list[Observation]) -> list[Observation]:
    """`steps` and another source's time of the first, three times as long."""
    twin = replace(steps[0], source="forum", seconds=3 * steps[0].seconds, setup=("forum",), row_id="twin")
    return [*steps, twin]


@pytest.fixture(scope="module")
def outcome() -> StepOutcome:
    return calibrate_steps(with_twin(STEPS))


def test_contradicted_steps_are_compared_and_nothing_else(outcome: StepOutcome) -> None:
    assert {name: group.n for name, group in outcome.groups.items()} == {
        "decode_contradicted_inf2": 2,
        "decode_dense_inf2": len(STEPS) // 2 - 1,
        "prefill_dense_inf2": len(STEPS) // 2,
    }
    assert outcome.coefficients == pytest.approx(calibrate_steps(STEPS[1:]).coefficients, rel=1e-6)
    assert outcome.groups["decode_contradicted_inf2"].left_out == dict.fromkeys(("series", "source", "model"))
    assert not [each for each in outcome.evidence.samples if each.source == "forum"]


def test_errors_are_near_the_noise_and_below_those_of_plain_models(outcome: StepOutcome) -> None:
    for name in ("decode_dense_inf2", "prefill_dense_inf2"):
        group = outcome.groups[name]
        assert group.all.mean < 0.06
        unseen = group.left_out["series"]
        assert unseen is not None
        assert unseen.mean < 0.12
        for plain in (SIX, ROOFLINE):
            found = outcome.baselines[plain][name]
            assert found is not None
            assert found.mean > unseen.mean


def test_evidence_has_each_configuration_once_with_the_median_of_its_rows() -> None:
    again = [
        replace(o, row_id=f"{o.row_id}-{n}", seconds=o.seconds * f) for n, f in enumerate((1, 1.3, 1)) for o in STEPS
    ]
    samples = calibrate_steps(again).evidence.samples
    assert len(samples) == len(STEPS)
    assert {each.num_rows for each in samples} == {3}
    assert np.median([each.error for each in samples]) == pytest.approx(1.0, abs=0.08)


@pytest.mark.parametrize("source", SOURCES)
def test_what_a_series_measured_changes_nothing_of_the_fit_without_it(source: str) -> None:
    series = (source, 28, "Llama-2-7B")
    factors = np.random.default_rng(2).uniform(1.05, 1.4, len(STEPS))  # too little to be contradicted
    spoilt = [
        replace(o, seconds=o.seconds * f) if o.series == series else o for o, f in zip(STEPS, factors, strict=True)
    ]
    assert coefficients_without(spoilt, series) == coefficients_without(STEPS, series)
    other = (source, 28, "Llama-3-8B")
    assert coefficients_without(spoilt, other) != coefficients_without(STEPS, other)


def test_a_check_has_errors_of_the_given_coefficients_and_nothing_left_out() -> None:
    exact = made_by(TRUTH, STEPS)
    checked = check_steps(exact, TRUTH, Evidence(()))
    assert checked.coefficients is TRUTH
    assert all(abs(row.error) < 1e-9 and row.left_out is None for row in checked.rows)
    assert set(checked.baselines) == {ROOFLINE, REPEATS}
    nothing = check_steps([], TRUTH, Evidence(()))
    assert (nothing.groups, nothing.rows, nothing.baselines) == ({}, (), {})


@pytest.mark.parametrize(
    ("seconds", "other", "mean"),
    [
        ((1.0, 1.2), {"source": "blog"}, (1 - 1 / 1.1 + 1.2 / 1.1 - 1) / 2),
        ((1.0, 1.2), {"sdk": 27}, (1 - 1 / 1.1 + 1.2 / 1.1 - 1) / 2),
        ((1.0, 1.2), {}, None),  # one source and release: no other run of it
        ((1.0, 1.2), {"source": "blog", "shape": with_depth(STEPS[0].shape, 31)}, None),
    ],
)
def test_how_far_runs_of_one_step_are_from_their_median(
    seconds: tuple[float, float], other: dict[str, object], mean: float | None
) -> None:
    one = replace(STEPS[0], seconds=seconds[0])
    runs = [one, replace(one, seconds=seconds[1], **other)]  # type: ignore[arg-type]
    (found,) = repeat_spread(runs, group_names(runs)).values()
    assert (found and found.mean) == (mean and pytest.approx(mean))


def test_statistics_are_of_sizes_and_the_bias_has_its_sign() -> None:
    stats = stats_of(np.array([-0.4, -0.2, -0.1, 0.1, -0.2]))
    assert (stats.mean, stats.median, stats.bias) == pytest.approx((0.2, 0.2, -0.2))
    assert stats.p90 == pytest.approx(0.32)
