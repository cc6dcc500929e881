"""Refusals before any answer, and their messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_harness import bench, request

from neuronserve.server.config import AttentionSpan, CacheConfig
from neuronserve.server.errors import InvalidRequest, QueueFull
from neuronserve.server.scheduler.admission import check_queue, resolve_max_tokens

ROOMY = CacheConfig(num_blocks=1000, block_size=16)


def resolve(num_prompt: int, max_tokens: int | None, max_model_len: int = 100, cache: CacheConfig = ROOMY) -> int:
    return resolve_max_tokens(num_prompt, max_tokens, max_model_len=max_model_len, cache=cache, param="messages")


def test_none_asks_for_all_the_context_that_is_left() -> None:
    assert resolve(30, None) == 70


def test_more_than_the_context_has_left_is_cut_to_it() -> None:
    assert resolve(30, 70) == 70
    assert resolve(30, 7000) == 70


def test_a_prompt_that_leaves_no_room_for_a_token_is_refused_with_both_numbers() -> None:
    assert resolve(99, None) == 1
    with pytest.raises(
        InvalidRequest, match=r"maximum context length is 100 tokens.* may have 99, and this one has 100"
    ) as refusal:
        resolve(100, 1)
    assert (refusal.value.param, refusal.value.code) == ("messages", "context_length_exceeded")
    assert refusal.value.status == 400


def test_none_asks_for_no_more_than_the_cache_holds() -> None:
    # 3 usable blocks of 4: 12 positions, and the last token needs none.
    assert resolve(10, None, cache=CacheConfig(num_blocks=4, block_size=4)) == 3


def test_more_than_the_cache_holds_is_refused_with_both_numbers() -> None:
    cache = CacheConfig(num_blocks=4, block_size=4)
    assert resolve(10, 3, cache=cache) == 3
    with pytest.raises(InvalidRequest, match=r"10 tokens and up to 4 .* holds 12, which leaves room for 3"):
        resolve(10, 4, cache=cache)
    with pytest.raises(InvalidRequest, match=r"13 tokens; the KV cache of this server holds 12"):
        resolve(13, None, cache=cache)


def test_layers_with_a_window_need_no_more_than_that_and_a_chunk() -> None:
    groups = AttentionSpan(), AttentionSpan(8)
    cache = CacheConfig(num_blocks=16, block_size=4, groups=groups, max_chunk=6)
    # A window and a chunk take 4 blocks of the 15, which leaves 11 for the layers that see everything.
    assert resolve(30, None, cache=cache) == 15
    with pytest.raises(InvalidRequest, match=r"holds 44, which leaves room for 15"):
        resolve(30, 16, cache=cache)
    only = CacheConfig(num_blocks=5, block_size=4, groups=groups[1:], max_chunk=6)
    assert resolve(30, None, cache=only) == 70


@given(
    num_prompt=st.integers(1, 20),
    max_tokens=st.one_of(st.none(), st.integers(1, 20)),
    num_blocks=st.integers(2, 6),
    block_size=st.integers(1, 4),
)
def test_what_is_admitted_runs_to_its_end_alone_and_one_token_more_would_not(
    num_prompt: int, max_tokens: int | None, num_blocks: int, block_size: int
) -> None:
    alone = bench(num_blocks, block_size, max_model_len=24)
    try:
        most = resolve(num_prompt, max_tokens, 24, alone.cache.config)
    except InvalidRequest:
        return
    alone.add(request("r", [1] * num_prompt, most))
    alone.finish()
    assert len(alone.tokens("r")) == most
    assert not any(plan.preempted for plan in alone.plans)
    if max_tokens is None and num_prompt + most < 24:
        beyond = bench(num_blocks, block_size, max_model_len=24)
        beyond.add(request("r", [1] * num_prompt, most + 1))
        beyond.finish()
        assert len(beyond.tokens("r")) == most


def test_the_queue_is_bounded_in_sequences() -> None:
    check_queue(7, 1, 8)
    with pytest.raises(QueueFull, match="7 requests open and takes at most 8; this request would add 2") as refusal:
        check_queue(7, 2, 8)
    assert refusal.value.status == 429
