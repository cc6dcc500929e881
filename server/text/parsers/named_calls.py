"""Calls whose name stands before a JSON object, between marks that are tokens: DeepSeek and Kimi.

DeepSeek V3.1: <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
DeepSeek V3 and R1: <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME, a line with ```json, the object, a line with ```
Kimi K2: <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .call_object import CallObject
from .json_calls import read_object
from .source import MAX_NAME_CHARS, Event, Functions, Reader, Source

FENCES = ("```json", "```")


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks around all calls, around each, and before its arguments."""

    opening: str
    closing: str
    begin: str
    separator: str
    end: str

    @property
    def tags(self) -> tuple[str, ...]:
        return (self.opening, self.closing, self.begin, self.separator, self.end)


DEEPSEEK = Marks(
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
)
KIMI = Marks(
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)


def read_named(source: Source, _functions: Functions, marks: Marks) -> Reader[None]:
    """Read calls; marks around all of them are dropped, and so is text between a call and its end."""
    while mark := (yield from source.until((marks.opening, marks.closing, marks.begin), "content")):
        if mark != marks.begin:
            continue
        head, mark = yield from source.gather((marks.separator, marks.end))
        before = marks.begin + head + mark
        if mark != marks.separator:
            yield Event("content", before)
            continue
        name, space = _name(head), (yield from source.blanks())
        if not (yield from source.is_next("{")):
            named = yield from source.up_to("\n{<", MAX_NAME_CHARS)
            name, before = named.strip(), before + space + named
            space = yield from source.blanks()
            space += (yield from source.literal(FENCES)) + (yield from source.blanks())
        if not name:
            yield Event("content", before + space)
        elif (yield from read_object(source, CallObject(name), before + space)) != "none":
            yield from source.until((marks.end,), None)


def _name(head: str) -> str:
    """Return the name of a call's identifier, `functions.NAME:0`, or the name itself."""
    return re.sub(r":\d+$", "", head.strip().removeprefix("functions."))
