"""Messages of the assistant: content and tool calls of a choice's text, whole or in parts."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from server.api.tools.hermes import CallPart, Parsed, ToolText
from server.api.wire.tools import CalledFunction, FunctionDelta, ToolCall, ToolCallDelta


@dataclass(frozen=True, slots=True)
class MessagePart:
    """Content and tool calls of a message, or of a part of one."""

    content: str
    calls: list[ToolCallDelta]


class MessageReader:
    """Reads the text of one choice as a message. Without a parser all of it is content."""

    def __init__(self, parser: ToolText | None) -> None:
        self._parser = parser

    @property
    def num_calls(self) -> int:
        return 0 if self._parser is None else self._parser.num_calls

    def read(self, text: str, is_last: bool) -> MessagePart:
        """Read the next part of the text; one delta for each call, because clients add them up by index."""
        if self._parser is None:
            return MessagePart(text, [])
        parsed = self._parser.feed(text)
        if is_last:
            _append(parsed, self._parser.finish())
        calls: dict[int, ToolCallDelta] = {}
        for part in parsed.calls:
            if part.index in calls:
                calls[part.index].function.arguments += part.arguments
            else:
                calls[part.index] = _delta(part)
        return MessagePart(parsed.content, list(calls.values()))


def whole_calls(part: MessagePart) -> list[ToolCall] | None:
    """The calls of a text that was read in one part."""
    return [
        ToolCall(id=call.id, function=CalledFunction(name=call.function.name or "", arguments=call.function.arguments))
        for call in part.calls
    ] or None


def _delta(part: CallPart) -> ToolCallDelta:
    if part.name is None:
        return ToolCallDelta(index=part.index, function=FunctionDelta(arguments=part.arguments))
    function = FunctionDelta(name=part.name, arguments=part.arguments)
    return ToolCallDelta(index=part.index, id=f"call_{uuid.uuid4().hex[:24]}", type="function", function=function)


def _append(parsed: Parsed, more: Parsed) -> None:
    parsed.content += more.content
    parsed.calls += more.calls
