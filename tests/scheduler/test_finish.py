"""When a sequence is over."""

from __future__ import annotations

from typing import Any

import pytest

from neuronserve.server.scheduler.finish import LENGTH, STOP, Finish, check_finish
from neuronserve.server.types import SamplingParams

EOS, STOPPER, PLAIN = 2, 50, 9


def finish(token_id: int, num_generated: int, *, is_context_full: bool = False, **fields: Any) -> Finish | None:
    fields = {"max_tokens": 10, "eos_token_ids": (EOS, 3), "stop_token_ids": (STOPPER,)} | fields
    return check_finish(SamplingParams(**fields), token_id, num_generated, is_context_full=is_context_full)


def test_a_plain_token_goes_on() -> None:
    assert finish(PLAIN, 9) is None


@pytest.mark.parametrize("token_id", [EOS, 3])
def test_each_of_the_models_end_tokens_stops_with_no_stop_reason(token_id: int) -> None:
    assert finish(token_id, 1) == STOP
    assert STOP.stop_reason is None


def test_ignore_eos_goes_past_the_models_end_tokens_only() -> None:
    assert finish(EOS, 1, ignore_eos=True) is None
    assert finish(STOPPER, 1, ignore_eos=True) == Finish("stop", STOPPER)


def test_a_stop_token_is_named_as_the_reason() -> None:
    assert finish(STOPPER, 1) == Finish("stop", STOPPER)


def test_an_end_token_the_client_lists_too_is_still_the_models() -> None:
    assert finish(EOS, 1, stop_token_ids=(EOS,)) == STOP
    assert finish(EOS, 1, stop_token_ids=(EOS,), ignore_eos=True) == Finish("stop", EOS)


@pytest.mark.parametrize("token_id", [EOS, STOPPER])
def test_min_tokens_holds_stop_tokens_back_until_enough_are_there(token_id: int) -> None:
    assert finish(token_id, 3, min_tokens=4) is None
    assert finish(token_id, 4, min_tokens=4) is not None


def test_max_tokens_ends_with_length() -> None:
    assert finish(PLAIN, 10) == LENGTH


def test_a_full_context_ends_with_length_whatever_min_tokens_says() -> None:
    assert finish(PLAIN, 1, min_tokens=5, is_context_full=True) == LENGTH


def test_a_last_token_that_stops_has_stopped() -> None:
    assert finish(EOS, 10) == STOP
    assert finish(STOPPER, 1, is_context_full=True) == Finish("stop", STOPPER)
