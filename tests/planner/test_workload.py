"""Synthetic workloads: seeded, of the asked shape, and refused with the value when they describe nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.clock import NS
from server.errors import SettingsError
from server.workload.workload import ArrivalProcess, LengthRange, SyntheticWorkload, Workload

CHAT = SyntheticWorkload(20_000, 50.0, LengthRange(100, 200), LengthRange(7, 7), seed=3)


def gaps_s(workload: Workload) -> Any:
    return np.diff(workload.arrival_ns) / NS


def test_one_seed_gives_one_workload_and_another_seed_another() -> None:
    first, again, other = CHAT.generate(), CHAT.generate(), replace(CHAT, seed=4).generate()
    for field in ("arrival_ns", "input_len"):
        assert np.array_equal(getattr(first, field), getattr(again, field))
        assert not np.array_equal(getattr(first, field), getattr(other, field))


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() -> None:
    gaps = gaps_s(CHAT.generate())
    assert np.mean(gaps) == pytest.approx(1 / 50, rel=0.03)
    assert np.std(gaps) == pytest.approx(1 / 50, rel=0.05)


@pytest.mark.parametrize("burstiness", [0.25, 4.0])
def test_gamma_gaps_keep_the_mean_and_vary_with_the_root_of_burstiness(burstiness: float) -> None:
    gaps = gaps_s(replace(CHAT, arrivals="gamma", burstiness=burstiness).generate())
    assert np.mean(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(burstiness**-0.5, rel=0.06)


def test_constant_gaps_are_equal() -> None:
    assert set(np.diff(replace(CHAT, arrivals="constant").generate().arrival_ns)) == {NS // 50}


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert set(replace(CHAT, rate=float("inf")).generate().arrival_ns) == {0}


@given(
    st.integers(1, 300), st.integers(1, 5000), st.integers(0, 5000), st.sampled_from(["poisson", "gamma", "constant"])
)
def test_lengths_stay_in_range_and_time_starts_at_zero(
    size: int, low: int, more: int, arrivals: ArrivalProcess
) -> None:
    lengths = LengthRange(low, low + more)
    workload = SyntheticWorkload(size, 3.0, lengths, lengths, arrivals, 0.5).generate()
    assert len(workload) == size
    assert workload.arrival_ns[0] == 0
    assert low <= workload.input_len.min() <= workload.input_len.max() <= low + more


def test_both_ends_of_a_range_are_drawn() -> None:
    assert set(replace(CHAT, output_len=LengthRange(1, 3)).generate().output_len) == {1, 2, 3}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rate": -1.0}, "the request rate is -1"),
        ({"rate": 0.0}, "the request rate is 0"),
        ({"rate": float("nan")}, "the request rate is nan"),
        ({"num_requests": 0}, "the number of requests is 0"),
        ({"burstiness": 0.0}, "burstiness is 0"),
        ({"burstiness": float("inf")}, "burstiness is inf"),
        ({"seed": -1}, "the seed is -1"),
        ({"arrivals": "uniform"}, "'uniform' are none of poisson, gamma, constant"),
        ({"input_len": LengthRange(0, 5)}, "the input length is 0:5"),
        ({"output_len": LengthRange(6, 5)}, "the output length is 6:5"),
        ({"rate": 1e-9}, "take over 1000000000 seconds"),
    ],
)
def test_what_is_no_workload_is_refused_with_its_value(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        replace(CHAT, **change).generate()


def test_lengths_are_written_as_a_number_or_a_range() -> None:
    assert LengthRange.parse("512", "input") == LengthRange(512, 512)
    assert LengthRange.parse("1:9", "input") == LengthRange(1, 9)
    for text in ("", "a", "9:1", "0", "1:2:3", "-4"):
        with pytest.raises(SettingsError, match="input is"):
            LengthRange.parse(text, "input")


@pytest.mark.parametrize(
    ("times", "inputs", "outputs"), [([1, 0], [1, 1], [1, 1]), ([0], [0], [1]), ([0], [1], [1, 1]), ([-1], [1], [1])]
)
def test_arrays_that_are_no_workload_are_refused(times: list[int], inputs: list[int], outputs: list[int]) -> None:
    with pytest.raises(ValueError, match=r"order|token|arrivals"):
        Workload("bad", np.array(times), np.array(inputs), np.array(outputs))
