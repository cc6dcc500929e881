"""Reasoning between two marks in front of the answer."""

from __future__ import annotations

from neuronserve.server.text.parsers.shapes import Thinking
from neuronserve.server.text.parsers.source import Event, Read, Reader, Source, blanks, literal, until


def read_thinking(source: Source, thinking: Thinking, is_open: bool | None, answer: Read) -> Reader[None]:
    """Reasoning, if there is any, and the answer, which is read by `answer`."""
    lead = yield from blanks(source)
    if (yield from literal(source, thinking.opening)) or is_open:
        yield from until(source, thinking.closing, "reasoning")
        yield from blanks(source)
        if thinking.end and (yield from literal(source, (thinking.answer,))):
            yield from until(source, (thinking.end,), "content")
    else:
        yield Event("content", lead)
    yield from answer(source)
