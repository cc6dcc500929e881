"""Last stage of the pipeline: a generation becomes one answer or a stream of events, in the shapes of an adapter."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable
from typing import Protocol

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive

from server.api.http.event_stream import DONE, EventStream, until_disconnect
from server.api.pipeline.generation import Delta, Generation


class Adapter(Protocol):
    """One dialect's shapes for the deltas of one generation."""

    generation: Generation

    def whole(self, deltas: list[Delta]) -> BaseModel:
        """The answer to a client that does not stream, from one complete delta for each choice."""

    def frames(self, deltas: list[Delta]) -> Iterable[bytes]:
        """Events for the next deltas; none while text is held back and nothing else was requested."""

    def last_frames(self) -> Iterable[bytes]:
        """Events that follow the last delta."""


async def respond(receive: Receive, adapter: Adapter, is_stream: bool) -> Response:
    """The HTTP response; a stream's once its first event is there, so that errors before it are plain HTTP errors."""
    if not is_stream:
        return await until_disconnect(receive, _whole(adapter))
    return await stream(receive, _frames(adapter))


async def stream(receive: Receive, frames: AsyncGenerator[bytes, None], end: bytes = DONE) -> Response:
    """The HTTP response of a stream of events, once its first is there."""
    try:
        first = await until_disconnect(receive, frames.asend(None))
    except BaseException:
        await frames.aclose()
        raise
    return EventStream(first, frames, end)


async def collect(generation: Generation) -> list[Delta]:
    """Run a generation to its end; one complete delta for each choice, by index."""
    whole: dict[int, Delta] = {}
    async with contextlib.aclosing(generation.deltas()) as batches:
        async for batch in batches:
            for delta in batch:
                _append(whole.setdefault(delta.index, Delta(delta.index)), delta)
    return [whole[index] for index in sorted(whole)]


async def whole_answer(adapter: Adapter) -> BaseModel:
    """Run a generation to its end: the answer to a client that does not stream."""
    return adapter.whole(await collect(adapter.generation))


async def _whole(adapter: Adapter) -> Response:
    answer = await whole_answer(adapter)
    return Response(answer.model_dump_json(), media_type="application/json")


async def _frames(adapter: Adapter) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(adapter.generation.deltas()) as batches:
        async for batch in batches:
            for frame in adapter.frames(batch):
                yield frame
    for frame in adapter.last_frames():
        yield frame


def _append(whole: Delta, delta: Delta) -> None:
    whole.text += delta.text
    whole.token_ids += delta.token_ids
    whole.logprobs += delta.logprobs
    whole.finish_reason, whole.stop_reason = delta.finish_reason, delta.stop_reason
