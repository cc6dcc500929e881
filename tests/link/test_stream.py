"""A stream whose reader is slow or has stopped: unread events are bounded, and its sequences end."""

from __future__ import annotations

import asyncio

import pytest

from neuronserve.server.errors import EngineDead, Unavailable
from neuronserve.server.link.stream import EVENT_BYTES, MAX_UNREAD_BYTES, MAX_UNREAD_BYTES_OF_SEQUENCE, TokenStream
from neuronserve.server.types import Charge, FinishReason, TokenEvent, TokenLogprobs

MOST = MAX_UNREAD_BYTES // EVENT_BYTES  # events that may wait
TWENTY = TokenLogprobs(-1.0, tuple(range(20)), (-1.0,) * 20)


def token(index: int, name: str = "a", logprobs: TokenLogprobs | None = None) -> TokenEvent:
    return TokenEvent(name, 7, index, 0.0, logprobs=logprobs)


def last_token(index: int, reason: FinishReason = "length") -> TokenEvent:
    return TokenEvent("a", 7, index, 0.0, finish_reason=reason)


async def reading(stream: TokenStream) -> asyncio.Task[list[tuple[TokenEvent, Charge]]]:
    """A reader that waits for the next events."""
    reader = asyncio.ensure_future(stream.next())
    await asyncio.sleep(0)
    return reader


async def test_a_slow_reader_gets_all_that_it_has_not_read_at_once() -> None:
    stream = TokenStream(["a"], lambda _: None)
    for start in range(0, 3 * MOST, MOST):
        for index in range(MOST):
            stream.put(token(start + index), Charge())
        assert [event.index for event, _ in await stream.next()] == list(range(start, start + MOST))


async def test_past_the_limit_its_sequences_are_aborted_and_it_ends_with_an_error() -> None:
    aborted: list[str] = []
    stream = TokenStream(["a", "b"], aborted.append)
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
    stream = TokenStream(["a"], aborted.append)
    for index in range(MOST // 4):
        stream.put(token(index, logprobs=TWENTY), Charge())
    assert aborted == ["a"]


@pytest.mark.slow
async def test_many_sequences_have_room_for_some_tokens_each() -> None:
    aborted: list[str] = []
    names = [str(number) for number in range(1000)]
    stream = TokenStream(names, aborted.append)
    for index in range(MAX_UNREAD_BYTES_OF_SEQUENCE // EVENT_BYTES):
        for name in names:
            stream.put(token(index, name), Charge())
    assert aborted == []
    assert len(await stream.next()) > 100_000


async def test_an_engine_found_dead_meanwhile_disturbs_nobody() -> None:
    def abort(_: str) -> None:
        raise EngineDead("it has ended")

    stream = TokenStream(["a"], abort)
    for index in range(MOST + 1):
        stream.put(token(index), Charge())
    with pytest.raises(Unavailable):
        await stream.next()


async def test_what_comes_while_the_reader_waits_is_taken_at_once() -> None:
    taken: list[int] = []
    stream = TokenStream(["a"], lambda _: None)
    stream.taker = lambda event, _: not taken.append(event.index)  # type: ignore[func-returns-value]
    stream.put(token(0), Charge())  # nobody waits
    assert [event.index for event, _ in await stream.next()] == [0]
    reader = await reading(stream)
    for event in (token(1), token(2), last_token(3)):
        assert not reader.done()
        stream.put(event, Charge())
    assert taken == [1, 2, 3]
    assert await reader == []
    assert not stream.is_open


async def test_what_is_not_taken_and_what_follows_it_waits_for_the_reader() -> None:
    asked: list[int] = []
    stream = TokenStream(["a"], lambda _: None)
    stream.taker = lambda event, _: bool(asked.append(event.index))  # type: ignore[func-returns-value]
    reader = await reading(stream)
    stream.put(token(0), Charge())
    stream.taker = lambda event, _: not asked.append(event.index)  # type: ignore[func-returns-value]
    stream.put(token(1), Charge())  # it would come before the one that waits
    assert [event.index for event, _ in await reader] == [0, 1]
    assert asked == [0]


async def test_what_a_taker_raises_is_its_readers_alone() -> None:
    def fail(event: TokenEvent, charge: Charge) -> bool:
        raise ZeroDivisionError

    aborted: list[str] = []
    with TokenStream(["a", "b"], aborted.append) as stream:
        stream.taker = fail
        reader = await reading(stream)
        stream.put(last_token(0), Charge())
        stream.put(token(0, "b"), Charge())
        with pytest.raises(ZeroDivisionError):
            await reader
    assert aborted == ["b"]
    assert stream.taker is None
