"""Server-sent events as they go out: every frame, comments in silence only, and an end for clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from neuronserve.server.api.http import event_stream as sse
from neuronserve.server.api.http.connection_end import WRITE
from neuronserve.server.errors import InvalidRequest

COMMENT = b": keep-alive\n\n"


async def frames(*waits: float) -> AsyncGenerator[bytes, None]:
    for i, seconds in enumerate(waits):
        await asyncio.sleep(seconds)
        yield sse.frame(b"%d" % i)


async def bodies_of(rest: AsyncGenerator[bytes, None], leaves_after_s: float = 60.0) -> list[bytes]:
    """Return the messages to a client that leaves after that time."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        await asyncio.sleep(leaves_after_s)
        return {"type": "http.disconnect"}

    async def all_frames() -> AsyncGenerator[bytes, None]:
        yield b"first"
        async with contextlib.aclosing(rest):
            async for each in rest:
                yield each

    await sse.EventStream(all_frames())({"type": "http"}, receive, send)
    assert sent[0]["type"] == "http.response.start"
    return [message["body"] for message in sent[1:]]


async def test_frames_that_follow_each_other_have_no_comments_between() -> None:
    assert await bodies_of(frames(0, 0, 0)) == [b"first", *(sse.frame(b"%d" % i) for i in range(3)), sse.DONE]


async def test_silence_is_broken_by_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.05)
    bodies = await bodies_of(frames(0, 0.5, 0))
    assert [body for body in bodies if body != COMMENT] == [
        b"first",
        *(sse.frame(b"%d" % i) for i in range(3)),
        sse.DONE,
    ]
    assert COMMENT in bodies[bodies.index(sse.frame(b"0")) : bodies.index(sse.frame(b"1"))]


async def test_what_is_raised_before_the_first_frame_is_raised_before_the_head() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def refused() -> AsyncGenerator[bytes, None]:
        raise InvalidRequest("no", "prompt")
        yield b""

    async def receive() -> Message:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    with pytest.raises(InvalidRequest):
        await sse.EventStream(refused())({"type": "http"}, receive, send)

    async def left() -> Message:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientDisconnect):
        await sse.EventStream(frames(60))({"type": "http"}, left, send)
    assert sent == []


async def test_a_client_that_leaves_in_silence_ends_the_stream() -> None:
    is_closed = False

    async def silent() -> AsyncGenerator[bytes, None]:
        nonlocal is_closed
        try:
            await asyncio.sleep(60)
            yield b""
        finally:
            is_closed = True

    assert await bodies_of(silent(), leaves_after_s=0.05) == [b"first"]
    assert is_closed


async def test_an_error_in_the_stream_is_its_last_event() -> None:
    async def failing() -> AsyncGenerator[bytes, None]:
        yield sse.frame(b"0")
        raise RuntimeError

    bodies = await bodies_of(failing())
    assert bodies[:2] == [b"first", sse.frame(b"0")]
    assert b'"error"' in bodies[2]
    assert bodies[3] == sse.DONE


class Connection:
    """Parts written to a client, and whether it takes more."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.takes = True

    def is_ready(self) -> bool:
        return self.takes

    def write(self, parts: Sequence[bytes]) -> None:
        assert self.takes
        self.parts += parts

    async def send(self, message: Message) -> None:
        self.parts.append(message.get("body", b"head"))


async def test_the_short_way_is_open_between_the_first_frame_and_the_last_while_the_client_reads() -> None:
    way, client, seen = sse.ShortWay(), Connection(), []

    async def made() -> AsyncGenerator[bytes, None]:
        seen.append(way.is_open)
        yield b"0"
        seen.append(way.is_open)
        way.write([b"1", b"2"])
        yield b"3"
        client.takes = False
        seen.append(way.is_open)
        yield b"4"
        client.takes = True

    async def receive() -> Message:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    assert not way.is_open
    response = sse.EventStream(made(), way=way)
    await response({"type": "http", "extensions": {WRITE: {"writer": client}}}, receive, client.send)
    assert client.parts == [b"head", b"0", b"1", b"2", b"3", b"4", sse.DONE]
    assert seen == [False, True, False]
    assert not way.is_open
