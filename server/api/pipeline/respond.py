"""Last stage of the pipeline: a generation becomes one answer or a stream of events, in the shapes of an adapter."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive

from neuronserve.server.api.http.event_stream import DONE, EventStream, ShortWay, until_disconnect
from neuronserve.server.api.pipeline.deltas import Delta
from neuronserve.server.api.pipeline.generation import AnyGeneration


class Adapter(Protocol):
    """One dialect's shapes for the deltas of one generation."""

    generation: AnyGeneration

    def whole(self, deltas: list[Delta]) -> BaseModel:
        """The answer to a client that does not stream, from one complete delta for each choice."""

    def frames(self, deltas: list[Delta]) -> Iterable[bytes]:
        """Events for the next deltas; none while text is held back and nothing else was requested."""

    def last_frames(self) -> Iterable[bytes]:
        """Events that follow the last delta."""


async def respond(receive: Receive, adapter: Adapter, is_stream: bool, end: bytes = DONE) -> Response:
    """Return the HTTP response; `end` is what a stream ends with."""
    if not is_stream:
        return await until_disconnect(receive, _whole(adapter))
    way = ShortWay()
    return EventStream(frames_of(adapter, way), end, way)


async def collect(generation: AnyGeneration) -> list[Delta]:
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


@dataclass(frozen=True, slots=True)
class _Forwarded:
    """Deltas that become frames and are written at once."""

    adapter: Adapter
    way: ShortWay

    @property
    def is_open(self) -> bool:
        return self.way.is_open

    def give(self, deltas: list[Delta]) -> None:
        self.way.write(self.adapter.frames(deltas))


async def frames_of(adapter: Adapter, way: ShortWay) -> AsyncGenerator[bytes, None]:
    """All events, but for those that took the short way."""
    async with contextlib.aclosing(adapter.generation.deltas(_Forwarded(adapter, way))) as batches:
        async for batch in batches:
            for frame in adapter.frames(batch):
                yield frame
    for frame in adapter.last_frames():
        yield frame


def _append(whole: Delta, delta: Delta) -> None:
    whole.text += delta.text
    whole.token_ids += delta.token_ids
    whole.logprobs += delta.logprobs
    whole.prompt_logprobs = whole.prompt_logprobs or delta.prompt_logprobs
    whole.finish_reason, whole.stop_reason, whole.fault = delta.finish_reason, delta.stop_reason, delta.fault
