"""OpenAI's `stream_options`: which chunks of a stream carry usage."""

from __future__ import annotations

from dataclasses import dataclass

from neuronserve.server.api.http.event_stream import frame
from neuronserve.server.api.pipeline.generation import AnyGeneration
from neuronserve.server.api.wire.chat import ChatChunk
from neuronserve.server.api.wire.completions import Completion
from neuronserve.server.api.wire.generation import GenerationRequest
from neuronserve.server.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """Usage in no chunk, in a last one of its own, or (`is_continuous`) in all of them too."""

    has_usage: bool = False
    is_continuous: bool = False

    def encode(self, chunk: ChatChunk | Completion, generation: AnyGeneration, has_output: bool = True) -> bytes:
        """A chunk with choices, as an event. One without output, which has a role alone, counts the prompt alone."""
        if self.is_continuous:
            chunk.usage = generation.usage(has_output)
        return frame(chunk.model_dump_json().encode())

    def last_frames(self, chunk: ChatChunk | Completion, generation: AnyGeneration) -> list[bytes]:
        """`chunk`, which has no choices, with the usage of the whole request; nothing unless usage was requested."""
        if not self.has_usage:
            return []
        chunk.usage, chunk.metrics = generation.usage(), generation.times()
        return [frame(chunk.model_dump_json().encode())]


def stream_usage(body: GenerationRequest) -> StreamUsage:
    """Read `stream_options`. Raises InvalidRequest when they are given without a stream."""
    options = body.stream_options
    if options is None:
        return StreamUsage()
    if not body.stream:
        raise InvalidRequest("stream_options is allowed only with stream.", "stream_options")
    return StreamUsage(bool(options.include_usage), bool(options.include_usage and options.continuous_usage_stats))
