"""How far a prediction may be off, and what stands behind it: provenance, bands, and why a step is outside."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.cost.calibration import default_calibration
from neuronserve.server.cost.evidence import (
    UNKNOWN,
    Band,
    Evidence,
    Phase,
    Point,
    Provenance,
    Sample,
    weighted_quantile,
)

POINT = Point("decode", "Inferentia2", 8.0, 8, 4, 4096, 2, False)
BIG = replace(POINT, billions=70.0, tp=24)
NARROW = replace(POINT, weight_bytes=1, batch=32)


def sample(point: Point, error: float = 1.0, source: str = "docs", num_rows: int = 1, model: str = "Some-8B") -> Sample:
    return Sample(point, model, source, num_rows, error, 28)


EVIDENCE = Evidence(
    [sample(POINT, 0.9), sample(BIG, 1.2), sample(replace(POINT, batch=16), 1.0)]
    + [sample(NARROW, 1.1, model=name) for name in ("Some-8B", "Other-8B", "Third-8B")]
)

points = st.builds(
    Point,
    phase=st.sampled_from(["decode", "prefill"]),
    chip=st.sampled_from(["Inferentia2", "Trainium1", "Trainium2", "Inferentia1"]),
    billions=st.floats(0.1, 400),
    tp=st.sampled_from([1, 2, 4, 8, 24, 64]),
    batch=st.integers(1, 512),
    positions=st.sampled_from([128, 4096, 16384, 131072]),
    weight_bytes=st.sampled_from([1, 2, 4]),
    has_experts=st.booleans(),
)


@given(points)
def test_a_band_holds_the_prediction_and_is_no_guess_where_there_are_samples(point: Point) -> None:
    for evidence in (EVIDENCE, default_calibration().evidence):
        band = evidence.band(point)
        assert 0 < band.low <= 1 <= band.high
        assert (band == UNKNOWN) == (not any(each.point.phase == point.phase for each in evidence.samples))
        outside = bool(evidence.why_outside(point))
        assert band.provenance != "interpolated" or not outside
        assert band.provenance != "formula" or outside


@pytest.mark.parametrize(
    ("changes", "provenance"),
    [
        ({}, "measured"),
        ({"billions": 8.3}, "measured"),  # within 5 %
        ({"batch": 8, "positions": 8192}, "measured"),  # within a factor of two
        ({"billions": 13.0}, "interpolated"),
        ({"positions": 1024}, "interpolated"),
        ({"tp": 12}, "interpolated"),
        ({"tp": 4}, "formula"),
        ({"tp": 32}, "formula"),
        ({"batch": 64}, "formula"),
        ({"batch": 1}, "interpolated"),  # fewer slots than measured are no risk
        ({"positions": 16384}, "formula"),
        ({"billions": 1.0}, "formula"),
        ({"billions": 400.0}, "formula"),
        ({"chip": "Trainium2"}, "formula"),
        ({"weight_bytes": 4}, "formula"),
        ({"has_experts": True}, "formula"),
        ({"phase": "prefill"}, "formula"),
    ],
)
def test_provenance_follows_from_what_was_measured(changes: dict[str, object], provenance: Provenance) -> None:
    assert EVIDENCE.band(replace(POINT, **changes)).provenance == provenance  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"phase": "prefill"}, "the calibration has no measured prefill"),
        ({"chip": "Trainium9"}, "no decode of an LLM on Trainium9 is among the measurements"),
        ({"has_experts": True}, "no decode of a mixture of experts on Inferentia2 is among the measurements"),
        ({"weight_bytes": 4}, "no decode with 32-bit weights was measured there"),
        ({"billions": 1.24}, "1.24 B parameters: measured are 8 to 70"),
        ({"billions": 405.0}, "405 B parameters: measured are 8 to 70"),
        ({"tp": 32}, "32 cores: measured are 8 to 24"),
        ({"tp": 1}, "1 cores: measured are 8 to 24"),
        ({"batch": 2000}, "2,000 slots: measured are 4 to 32"),
        ({"positions": 131072}, "131,072 positions: measured are 4,096 to 4,096"),
    ],
)
def test_what_lies_outside_is_named_with_its_limits(changes: dict[str, object], reason: str) -> None:
    assert reason in EVIDENCE.why_outside(replace(POINT, **changes))  # type: ignore[arg-type]
    assert EVIDENCE.why_outside(POINT) == ()


def test_every_reason_is_given() -> None:
    assert len(EVIDENCE.why_outside(replace(POINT, tp=64, batch=999, weight_bytes=4))) == 3


def test_measured_steps_count_their_rows_and_others_name_the_nearest() -> None:
    evidence = Evidence([sample(POINT, num_rows=5), sample(replace(POINT, batch=8), num_rows=2), sample(BIG)])
    measured, between = evidence.band(POINT), evidence.band(replace(POINT, billions=60.0, tp=24))
    assert measured.num_rows == 7
    assert (between.num_rows, between.nearest) == (1, "Some-8B TP24 batch 4 on Inferentia2")


def test_a_band_is_wider_the_farther_the_nearest_measurement_is() -> None:
    evidence = Evidence([sample(POINT, 0.9), sample(replace(POINT, batch=8), 1.1)])
    far = [evidence.band(replace(POINT, billions=8.0 * 4**n)) for n in range(5)]
    widths = [log(band.high / band.low) for band in far]
    assert widths == sorted(widths)
    assert widths[-1] > 1.5 * widths[0]
    other = evidence.band(replace(POINT, chip="Trainium2", has_experts=True))
    assert other.low < far[0].low
    assert other.high > far[0].high


def test_near_errors_count_more_than_far_ones() -> None:
    other = replace(POINT, chip="Trainium1", billions=POINT.billions * 16, has_experts=True)
    evidence = Evidence([sample(at, error, f"{n}") for at, error in ((POINT, 1.05), (other, 2.0)) for n in range(40)])
    assert evidence.band(POINT).high == pytest.approx(1.05, rel=0.01)
    assert evidence.band(other).high == pytest.approx(2.0, rel=0.03)


def test_rows_of_one_series_are_one_voice() -> None:
    steps = [replace(POINT, batch=n) for n in range(1, 9)]
    sweep = [sample(step, 1.3, "sweep") for step in steps]
    others = [sample(POINT, 1.1, f"s{n}") for n in range(8)]
    assert Evidence([*sweep, *others]).band(POINT).high < 1.2
    assert Evidence([*sweep, *others[:1]]).band(POINT).high > 1.3


def test_few_series_are_wide_and_many_are_their_spread() -> None:
    """Eight of ten errors lie within a factor of 1.2; Student's t adds what is not known of so few."""
    widths = []
    for count in (2, 3, 10, 400):
        errors = [1.2 ** (quantile / 0.8) for quantile in np.linspace(0, 1, count)]
        widths.append(log(Evidence([sample(POINT, e, f"s{n}") for n, e in enumerate(errors)]).band(POINT).high))
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] == pytest.approx(log(1.2), rel=0.02)
    assert widths[0] > 2.5 * widths[-1]


def test_a_band_has_equal_factors_on_both_sides() -> None:
    band = Evidence([sample(POINT, 0.8, "a"), sample(POINT, 0.9, "b")]).band(POINT)
    assert band.low * band.high == pytest.approx(1.0)


def test_a_width_of_weights_that_few_models_hold_is_hardly_known() -> None:
    few = Evidence([sample(POINT), sample(NARROW), sample(NARROW, model="Other-8B")])
    assert few.why_outside(NARROW) == ("fewer than 3 models were measured with 8-bit weights",)
    assert EVIDENCE.why_outside(NARROW) == ()


def test_each_way_in_which_nothing_like_it_was_measured_widens_a_band() -> None:
    bands = [
        EVIDENCE.band(point)
        for point in (POINT, replace(POINT, batch=41), replace(POINT, batch=41, positions=5200, tp=7))
    ]
    assert [len(EVIDENCE.why_outside(point)) for point in (replace(POINT, batch=41), replace(POINT, tp=7))] == [1, 1]
    widths = [log(band.high / band.low) for band in bands]
    assert widths == sorted(widths)
    assert widths[-1] > 1.5 * widths[0]


def test_a_series_left_out_has_no_say() -> None:
    own = sample(POINT, 3.0, "own")
    evidence = Evidence([own, sample(POINT, 1.1, "other")])
    assert evidence.band(POINT, own.series) == Evidence([sample(POINT, 1.1, "other")]).band(POINT)
    assert Evidence([own]).band(POINT, own.series) == UNKNOWN


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_bands_hold_eight_of_ten_measurements_of_series_that_they_had_not_seen(phase: Phase) -> None:
    evidence = default_calibration().evidence
    own = [each for each in evidence.samples if each.point.phase == phase]
    bands = [evidence.band(each.point, each.series) for each in own]
    inside = [band.low <= each.error <= band.high for band, each in zip(bands, own, strict=True)]
    for weights in (None, [each.num_rows for each in own]):  # by configuration and by row
        assert 0.7 < np.average(inside, weights=weights) < 0.9


def test_two_bands_join_to_what_both_hold_and_what_is_known_least() -> None:
    one, other = Band(0.8, 1.1, "measured", 9, "a"), Band(0.9, 1.5, "formula", 1, "b")
    assert one.join(other) == other.join(one) == Band(0.8, 1.5, "formula", 1, "b")


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_no_sample_is_a_guess_that_says_so(phase: Phase) -> None:
    assert Evidence(()).band(replace(POINT, phase=phase)) == UNKNOWN
    assert UNKNOWN.provenance == "formula"


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=30), st.floats(0.01, 0.99))
def test_a_quantile_is_between_the_least_and_the_most(values: list[float], share: float) -> None:
    found = weighted_quantile(np.array(values), np.ones(len(values)), share)
    assert min(values) <= found <= max(values)


def test_weights_move_a_quantile() -> None:
    values = np.array([1.0, 2.0, 3.0])
    assert weighted_quantile(values, np.array([1.0, 1.0, 1.0]), 0.5) == 2.0
    assert weighted_quantile(values, np.array([10.0, 1.0, 1.0]), 0.5) < 1.5
    assert weighted_quantile(np.linspace(0, 1, 1001), np.ones(1001), 0.9) == pytest.approx(0.9, abs=0.01)
