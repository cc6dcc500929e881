"""A stream whose reader is slow, or has stopped: what waits for it is bounded, and its sequences end."""

from __future__ import annotations

import pytest

from server.errors import EngineDead, Unavailable
from server.link.stream import EVENT_BYTES, MAX_UNREAD_BYTES, MAX_UNREAD_BYTES_OF_SEQUENCE, Stream
from server.types import Charge, TokenEvent, TokenLogprobs

MOST = MAX_UNREAD_BYTES // EVENT_BYTES  # events that may wait
TWENTY = TokenLogprobs(-1.0, tuple(range(20)), (-1.0,) * 20)


def token(index: int, name: str = "a", logprobs: TokenLogprobs | None = None) -> TokenEvent:
    return TokenEvent(name, 7, index, 0.0, logprobs=logprobs)


async def test_a_slow_reader_gets_all_that_it_has_not_read_at_once() -> None:
    stream = Stream(["a"], lambda _: None)
    for start in range(0, 3 * MOST, MOST):
        for index in range(MOST):
            stream.put(token(start + index), Charge())
        assert [event.index for event, _ in await stream.next()] == list(range(start, start + MOST))


async def test_past_the_limit_its_sequences_are_aborted_and_it_ends_with_an_error() -> None:
    aborted: list[str] = []
    stream = Stream(["a", "b"], aborted.append)
    with stream:
        for index in range(MOST + 1):
            stream.put(token(index), Charge())
        assert sorted(aborted) == ["a", "b"]
        with pytest.raises(Unavailable, match="unread") as refusal:
            await stream.next()
        assert refusal.value.code == "slow_reader"
    assert sorted(aborted) == ["a", "b"]


async def test_log_probabilities_count() -> None:
    aborted: list[str] = []
    stream = Stream(["a"], aborted.append)
    for index in range(MOST // 4):
        stream.put(token(index, logprobs=TWENTY), Charge())
    assert aborted == ["a"]


async def test_many_sequences_have_room_for_some_tokens_each() -> None:
    aborted: list[str] = []
    names = [str(number) for number in range(1000)]
    stream = Stream(names, aborted.append)
    for index in range(MAX_UNREAD_BYTES_OF_SEQUENCE // EVENT_BYTES):
        for name in names:
            stream.put(token(index, name), Charge())
    assert aborted == []
    assert len(await stream.next()) > 100_000


async def test_an_engine_found_dead_meanwhile_disturbs_nobody() -> None:
    def abort(_: str) -> None:
        raise EngineDead("it has ended")

    stream = Stream(["a"], abort)
    for index in range(MOST + 1):
        stream.put(token(index), Charge())
    with pytest.raises(Unavailable):
        await stream.next()
