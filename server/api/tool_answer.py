"""A choice's text as the content and the tool calls of its message, whole or in parts."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from server.api.schemas_tools import CalledFunction, FunctionDelta, ToolCall, ToolCallDelta
from server.api.tool_text import CallPart, Parsed, ToolText


@dataclass(frozen=True, slots=True)
class Said:
    """What a message, or a part of one, says."""

    content: str
    calls: list[ToolCallDelta]


class Speech:
    """Reads the text of one choice. `reader` None: all of it is content."""

    def __init__(self, reader: ToolText | None) -> None:
        self._reader = reader

    @property
    def num_calls(self) -> int:
        return 0 if self._reader is None else self._reader.num_calls

    def say(self, text: str, is_last: bool) -> Said:
        """What the next part of the text says; one delta a call, because clients add them up by index."""
        if self._reader is None:
            return Said(text, [])
        parsed = self._reader.feed(text)
        if is_last:
            _append(parsed, self._reader.finish())
        calls: dict[int, ToolCallDelta] = {}
        for part in parsed.calls:
            if part.index in calls:
                calls[part.index].function.arguments += part.arguments
            else:
                calls[part.index] = _delta(part)
        return Said(parsed.content, list(calls.values()))


def whole_calls(said: Said) -> list[ToolCall] | None:
    """The calls of a text that was read in one part."""
    return [
        ToolCall(id=call.id, function=CalledFunction(name=call.function.name or "", arguments=call.function.arguments))
        for call in said.calls
    ] or None


def _delta(part: CallPart) -> ToolCallDelta:
    if part.name is None:
        return ToolCallDelta(index=part.index, function=FunctionDelta(arguments=part.arguments))
    function = FunctionDelta(name=part.name, arguments=part.arguments)
    return ToolCallDelta(index=part.index, id=f"call_{uuid.uuid4().hex[:24]}", type="function", function=function)


def _append(parsed: Parsed, more: Parsed) -> None:
    parsed.content += more.content
    parsed.calls += more.calls
