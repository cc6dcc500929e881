"""Workloads: what they refuse, how they change, and the synthetic ones, which follow from their seed alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.clock import NS
from neuronserve.server.errors import SettingsError
from neuronserve.workload.arrivals import Arrivals
from neuronserve.workload.lengths import LengthRange
from neuronserve.workload.sharegpt import COUNTS, INPUT_EDGES, OUTPUT_EDGES, sharegpt_workload
from neuronserve.workload.synthetic import SyntheticWorkload, random_stream
from neuronserve.workload.workload import Workload

CHAT = SyntheticWorkload(20_000, Arrivals(50.0), LengthRange(100, 200), LengthRange(7, 7), seed=3)
FIELDS = ("arrival_ns", "input_len", "output_len")


def alike(one: Workload, other: Workload) -> list[bool]:
    return [np.array_equal(getattr(one, field), getattr(other, field)) for field in FIELDS]


def test_one_seed_gives_one_workload_and_another_seed_another() -> None:
    varied = replace(CHAT, output_len=LengthRange(1, 99))
    assert alike(varied.generate(), varied.generate()) == [True] * 3
    assert alike(varied.generate(), replace(varied, seed=4).generate()) == [False] * 3


def test_what_is_drawn_for_one_thing_changes_nothing_else() -> None:
    chat = CHAT.generate()
    assert alike(chat, replace(CHAT, arrivals=Arrivals(9.0, 0.3)).generate()) == [False, True, True]
    assert alike(chat, replace(CHAT, output_len=LengthRange(1, 9)).generate()) == [True, True, False]
    assert not np.array_equal(random_stream(0, "input_len").random(9), random_stream(0, "output_len").random(9))


@given(st.integers(1, 300), st.integers(1, 5000), st.integers(0, 5000))
def test_lengths_stay_in_range_and_more_requests_begin_alike(size: int, low: int, more: int) -> None:
    lengths = LengthRange(low, low + more)
    asked = SyntheticWorkload(size, Arrivals(3.0, 0.5), lengths, lengths, prefix_len=5, num_prefixes=3)
    workload, longer = asked.generate(), replace(asked, num_requests=size + 9).generate()
    assert len(workload) == size
    assert low <= workload.input_len.min() - 5 <= workload.input_len.max() - 5 <= low + more
    assert alike(workload, longer.only(np.arange(size + 9) < size)) == [True] * 3
    assert (longer.prefixes or ())[:size] == workload.prefixes


def test_both_ends_of_a_range_are_drawn() -> None:
    assert set(replace(CHAT, output_len=LengthRange(1, 3)).generate().output_len) == {1, 2, 3}


def test_prefixes_come_on_top_of_the_input_and_are_equally_likely() -> None:
    shared = replace(CHAT, prefix_len=64, num_prefixes=4).generate()
    assert np.array_equal(shared.input_len, CHAT.generate().input_len + 64)
    names, counts = np.unique(np.array(shared.prefixes), return_counts=True)
    assert names.tolist() == [0, 1, 2, 3]
    assert counts.min() > 0.9 * len(shared) / 4
    assert shared.prefix_block == 64
    assert CHAT.generate().prefixes is None


def test_a_workload_is_named_by_its_arrivals_and_its_seed() -> None:
    assert CHAT.generate().name == "poisson, 50 requests/s, seed 3"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_requests": 0}, "the number of requests is 0"),
        ({"seed": -1}, "seed is -1: it must be at least 0"),
        ({"prefix_len": -1}, "prefix_len is -1"),
        ({"num_prefixes": 0}, "num_prefixes is 0"),
    ],
)
def test_what_is_no_workload_is_refused_with_its_value(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        replace(CHAT, **change)


def test_a_stream_of_a_negative_seed_is_refused() -> None:
    with pytest.raises(SettingsError, match="seed is -1"):
        random_stream(-1, "tokens")


def test_lengths_are_written_as_a_number_or_a_range() -> None:
    assert LengthRange.parse("512", "input") == LengthRange(512, 512)
    assert LengthRange.parse("1:9", "input") == LengthRange(1, 9)
    for text in ("", "a", "9:1", "0", "1:2:3", "-4"):
        with pytest.raises(SettingsError, match="input is"):
            LengthRange.parse(text, "input")


def test_lengths_around_a_mean_are_at_least_one() -> None:
    assert LengthRange.around(512, 0.5) == LengthRange(256, 768)
    assert LengthRange.around(512, 0.0) == LengthRange(512, 512)
    assert LengthRange.around(1, 0.9) == LengthRange(1, 1)


@pytest.mark.parametrize(("low", "high"), [(0, 5), (6, 5), (1, 2**31)])
def test_lengths_that_do_not_rise_from_one_are_refused(low: int, high: int) -> None:
    with pytest.raises(SettingsError, match=f"{low}:{high} is no range of lengths"):
        LengthRange(low, high)


def test_sharegpt_lengths_follow_the_histogram() -> None:
    drawn = sharegpt_workload(40_000, seed=0)
    edges = [np.array(INPUT_EDGES), np.array(OUTPUT_EDGES)]
    found, _, _ = np.histogram2d(drawn.input_len, drawn.output_len, bins=edges)
    counts = np.array(COUNTS)
    assert counts.sum() == 30_731
    assert found.sum() == 40_000
    assert abs(found / found.sum() - counts / counts.sum()).max() < 0.003
    # The source's own medians: 1730 and 415 tokens.
    assert np.median(drawn.input_len) == pytest.approx(1730, rel=0.05)
    assert np.median(drawn.output_len) == pytest.approx(415, rel=0.05)
    assert alike(sharegpt_workload(50, 0), drawn.only(np.arange(40_000) < 50)) == [True] * 3


def made(times: list[int], inputs: list[int], outputs: list[int], **fields: Any) -> Workload:
    return Workload("made", *(np.array(values, dtype=np.int64) for values in (times, inputs, outputs)), **fields)


@pytest.mark.parametrize(
    ("times", "inputs", "outputs"), [([1, 0], [1, 1], [1, 1]), ([0], [0], [1]), ([0], [1], [1, 1]), ([-1], [1], [1])]
)
def test_arrays_that_are_no_workload_are_refused(times: list[int], inputs: list[int], outputs: list[int]) -> None:
    with pytest.raises(ValueError, match=r"order|token|arrivals"):
        made(times, inputs, outputs)


def test_a_workload_may_come_faster_or_at_another_rate() -> None:
    load = made([0, NS, 4 * NS], [5, 5, 5], [1, 1, 1])
    assert load.rate == 0.5
    assert load.at_speed(2.0).arrival_s.tolist() == [0.0, 0.5, 2.0]
    assert load.at_rate(5.0).rate == 5.0
    at_once = made([0, 0], [5, 5], [1, 1])
    assert at_once.rate == float("inf")
    assert at_once.at_rate(5.0) is at_once


def test_scaled_lengths_are_at_least_one_and_blocks_scale_with_them() -> None:
    load = made([0, 9], [1000, 3], [10, 1], prefixes=((1, 2), ()), prefix_block=500).at_scale(0.1)
    assert (load.input_len.tolist(), load.output_len.tolist()) == ([100, 1], [1, 1])
    assert (load.prefix_block, load.prefixes) == (50, ((1, 2), ()))
    assert load.arrival_ns.tolist() == [0, 9]


def test_what_is_left_of_a_workload_begins_at_zero() -> None:
    load = made([0, 4, 9], [1, 2, 3], [4, 5, 6], prefixes=((1,), (2,), (3,))).only(np.array([False, True, True]))
    assert (load.arrival_ns.tolist(), load.input_len.tolist(), load.output_len.tolist()) == ([0, 5], [2, 3], [5, 6])
    assert load.prefixes == ((2,), (3,))
