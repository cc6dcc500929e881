"""Requests beyond a context: what is cut, dropped, or left to be refused, and what they still share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.errors import SettingsError
from neuronserve.workload.workload import Workload, fit_context

LONG = Workload(
    "w",
    np.array([5, 6, 7, 9]),
    np.array([10, 30, 31, 90]),
    np.array([5, 2, 2, 40]),
    prefixes=((1, 2), (1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6, 7, 8, 9)),
    prefix_block=10,
)


def test_a_cut_takes_the_ends_off_prompts_and_their_blocks_and_keeps_answers() -> None:
    cut = fit_context(LONG, 32, "cut")
    assert cut.input_len.tolist() == [10, 30, 30, 1]
    assert cut.output_len.tolist() == [5, 2, 2, 31]  # an answer alone too long is cut to leave a token of the prompt
    assert cut.prefixes == ((1,), (1, 2, 3), (1, 2, 3), (1,))
    assert (cut.num_cut, cut.num_dropped, cut.arrival_ns.tolist()) == (2, 0, [5, 6, 7, 9])


def test_dropping_leaves_the_others_as_they_are_from_time_0_on() -> None:
    kept = fit_context(LONG, 15, "drop")
    assert (kept.input_len.tolist(), kept.arrival_ns.tolist(), kept.prefixes) == ([10], [0], ((1, 2),))
    assert (kept.num_cut, kept.num_dropped) == (0, 3)
    with pytest.raises(SettingsError, match="w: each request is longer than max_model_len 14"):
        fit_context(LONG, 14, "drop")


def test_what_fits_and_what_is_to_be_refused_is_not_touched() -> None:
    assert fit_context(LONG, 130, "cut") is LONG
    assert fit_context(LONG, 8, "refuse") is LONG
    with pytest.raises(SettingsError, match="too_long is 'shrink': one of cut, drop, refuse"):
        fit_context(LONG, 8, "shrink")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="max_model_len is 1: it must be at least 2"):
        fit_context(LONG, 1, "cut")


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99)), min_size=1), st.integers(2, 120))
def test_after_a_cut_everything_fits_and_only_what_was_too_long_is_less(
    pairs: list[tuple[int, int]], most: int
) -> None:
    inputs, outputs = (np.array(column) for column in zip(*pairs, strict=True))
    cut = fit_context(Workload("w", np.zeros(len(pairs), dtype=np.int64), inputs, outputs), most, "cut")
    assert (cut.input_len + cut.output_len).max() <= most
    assert min(cut.input_len.min(), cut.output_len.min()) >= 1
    changed = (cut.input_len != inputs) | (cut.output_len != outputs)
    assert changed.tolist() == [a + b > most for a, b in pairs]
    assert cut.num_cut == changed.sum()
