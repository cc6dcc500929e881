"""What streams of both generation endpoints share: their options, their usage, and the first chunk before the 200."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.types import Receive

from server.api.generation import Generation
from server.api.schemas_chat import ChatChunk
from server.api.schemas_completions import Completion
from server.api.schemas_request import GenerationRequest
from server.api.sse import EventStream, frame, until_disconnect
from server.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Which chunks carry usage: none, a last one of its own, or all of them too."""

    has_usage: bool = False
    is_continuous: bool = False

    def encode(self, chunk: ChatChunk | Completion, generation: Generation) -> bytes:
        """A chunk with choices, as an event. Where usage comes last, OpenAI has it as null before."""
        if self.is_continuous:
            chunk.usage = generation.usage()
        return frame(chunk.model_dump_json(exclude=None if self.has_usage else {"usage"}).encode())

    def last(self, chunk: ChatChunk | Completion, generation: Generation) -> bytes:
        """The chunk without choices that carries the usage of the whole request."""
        chunk.usage = generation.usage()
        return frame(chunk.model_dump_json().encode())


def stream_plan(body: GenerationRequest) -> StreamPlan:
    """The stream options of a request. Raises InvalidRequest when they are given without a stream."""
    options = body.stream_options
    if options is None:
        return StreamPlan()
    if not body.stream:
        raise InvalidRequest("stream_options is allowed only with stream.", "stream_options")
    return StreamPlan(bool(options.include_usage), bool(options.include_usage and options.continuous_usage_stats))


async def event_stream(receive: Receive, frames: AsyncGenerator[bytes, None]) -> EventStream:
    """The stream's response, once its first event is there; errors before that are raised."""
    try:
        first = await until_disconnect(receive, frames.asend(None))
    except BaseException:
        await frames.aclose()
        raise
    return EventStream(first, frames)
