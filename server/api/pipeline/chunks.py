"""Chunks of OpenAI's streams as events, with the usage that `stream_options` asks for.

Most chunks differ in their text alone: those are written once, and then filled.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..wire.chat import ChatChunk
from ..wire.completions import Completion
from .generation import Generation
from .respond import json_frame

MARK = "\0"
_ENCODER = msgspec.json.Encoder()
_ENCODED_MARK = b'"\\u0000"'
Chunk = ChatChunk | Completion


class ChunkWriter:
    """Writes the events of one stream. `of_text` makes the chunk of a choice's index and a text."""

    def __init__(self, generation: Generation, of_text: Callable[[int, str], Chunk]) -> None:
        options = generation.request.body.stream_options
        self._generation = generation
        self._has_usage = options is not None and bool(options.include_usage)
        self.has_continuous_usage = self._has_usage and bool(options and options.continuous_usage_stats)
        self._texts = TextChunks(lambda index, text: self.event(of_text(index, text)))

    def event(self, chunk: Chunk, has_output: bool = True) -> bytes:
        """Event of a chunk with choices; without output, as with a role alone, usage counts only the prompt."""
        if self.has_continuous_usage:
            chunk.usage = self._generation.usage(has_output)
        return json_frame(chunk)

    def text_event(self, index: int, text: str) -> bytes:
        """Event of a chunk that has text alone."""
        return self._texts.event(index, text)

    def last_events(self, chunk: Chunk) -> list[bytes]:
        """Event of `chunk`, which has no choices, with the usage of the request; none unless usage was requested."""
        if not self._has_usage:
            return []
        chunk.usage, chunk.metrics = self._generation.usage(), self._generation.times()
        return [json_frame(chunk)]


class TextChunks:
    """Events that differ in their text alone: each is written once per choice, and then filled with texts."""

    def __init__(self, write: Callable[[int, str], bytes]) -> None:
        """`write` makes the event of a choice's index and a text."""
        self._write = write
        self._parts: dict[int, tuple[bytes, bytes]] = {}  # by choice: before its text and behind it

    def event(self, index: int, text: str) -> bytes:
        """Return the event that `write` would make."""
        parts = self._parts.get(index)
        if parts is None:
            parts = self._parts[index] = self._divide(index)
        return b"%b%b%b" % (parts[0], _ENCODER.encode(text), parts[1])

    def _divide(self, index: int) -> tuple[bytes, bytes]:
        """Split an event at the last mark: no field behind the text has a value that a client chose."""
        before, _, behind = self._write(index, MARK).rpartition(_ENCODED_MARK)
        return before, behind
