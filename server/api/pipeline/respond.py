"""End of the pipeline: a generation becomes one answer or a stream of events, in the shapes of a dialect."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive

from ..http.event_stream import DONE, EventStream, ShortWay, frame, until_disconnect
from .deltas import Delta, collect
from .generation import Generation


class AnswerWriter(Protocol):
    """One dialect's shapes for the deltas of one generation."""

    generation: Generation

    def whole(self, deltas: list[Delta]) -> BaseModel:
        """Return the answer to a client that does not stream, from one complete delta for each choice."""

    def frames(self, deltas: list[Delta]) -> Iterable[bytes]:
        """Return events for the next deltas; none while text is held back and nothing else was requested."""

    def last_frames(self) -> Iterable[bytes]:
        """Return the events that follow the last delta."""


async def respond(
    receive: Receive,
    writer: AnswerWriter,
    is_stream: bool,
    end: bytes = DONE,
    stream: type[EventStream] = EventStream,
) -> Response:
    """Return the HTTP response; `end` is what a stream ends with."""
    if not is_stream:
        answer = await until_disconnect(receive, whole_answer(writer))
        return Response(answer.model_dump_json(), media_type="application/json")
    way = ShortWay()
    return stream(frames_of(writer, way), end, way, writer.generation.journal)


async def whole_answer(writer: AnswerWriter) -> BaseModel:
    """Run a generation to its end, and return the answer to a client that does not stream."""
    return writer.whole(await collect(writer.generation.deltas()))


@dataclass(frozen=True, slots=True)
class _Forwarded:
    """Writes deltas to the client as soon as they come, past the coroutine of the response."""

    writer: AnswerWriter
    way: ShortWay
    context: Context  # of the request's own task, which draws the same numbers

    @property
    def is_open(self) -> bool:
        return self.way.is_open

    def give(self, deltas: list[Delta]) -> None:
        self.way.write_soon(self.context.run(_frames, self.writer, deltas))


def json_frame(answer: BaseModel) -> bytes:
    """Encode a part of a stream as one event."""
    return frame(answer.model_dump_json().encode())


def _frames(writer: AnswerWriter, deltas: list[Delta]) -> list[bytes]:
    """Return the events of deltas, behind the entry of the journal that makes them again."""
    return [*writer.generation.journal.take(), *writer.frames(deltas)]


async def frames_of(writer: AnswerWriter, way: ShortWay) -> AsyncGenerator[bytes, None]:
    """Yield all events except those that were written to `way`."""
    forward = _Forwarded(writer, way, copy_context())
    async with contextlib.aclosing(writer.generation.deltas(forward)) as batches:
        async for batch in batches:
            for event in _frames(writer, batch):
                yield event
    for event in writer.last_frames():
        yield event
