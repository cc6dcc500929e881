"""Chunks that are written once and filled with texts: byte for byte what the writer would have made of each text."""

from __future__ import annotations

import sys

import pytest

from neuronserve.server.api.pipeline.chunks import TextChunks
from neuronserve.server.api.wire.chat import ChatChunk, ChatChunkChoice, ChatDelta

AWKWARD = (
    '"',
    "\\",
    "\\u0000",
    "\0",
    "\x1f\x7f\x08\x0c\n\r\t",
    "é漢😀",
    "\ufeff\u2028\u2029\ufffd",
    "</script>",
    " ",
    "a" * 9999,
)


def write(index: int, text: str) -> bytes:
    choice = ChatChunkChoice(index=index, delta=ChatDelta(content=text))
    # What clients choose stands before the text, and may look like the mark of its place.
    chunk = ChatChunk(id='"\0"', created=1, model='"\\u0000"', system_fingerprint="f", choices=[choice])
    return chunk.model_dump_json().encode()


@pytest.mark.parametrize("text", AWKWARD)
def test_an_event_is_what_the_writer_makes(text: str) -> None:
    chunks = TextChunks(write)
    assert [chunks.event(index, text) for index in (0, 127, 0)] == [write(index, text) for index in (0, 127, 0)]


def test_every_character_is_escaped_alike() -> None:
    text = "".join(chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF)
    assert TextChunks(write).event(3, text) == write(3, text)
