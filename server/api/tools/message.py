"""Messages of the assistant: content, reasoning and tool calls of a choice's text, whole or in parts."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from server.api.wire.tools import CalledFunction, FunctionDelta, ToolCall, ToolCallDelta
from server.text.parsers.output import CallPart, OutputParser, Parsed


@dataclass(frozen=True, slots=True)
class MessagePart:
    """Content, reasoning and tool calls of a message, or of a part of one."""

    content: str
    reasoning: str
    calls: list[ToolCallDelta]


class MessageReader:
    """Reads the text of one choice as a message. Without a parser all of it is content.

    `has_reasoning` False: reasoning is left out.
    """

    def __init__(self, parser: OutputParser | None, has_reasoning: bool = True) -> None:
        self._parser = parser
        self._has_reasoning = has_reasoning

    @property
    def num_calls(self) -> int:
        return 0 if self._parser is None else self._parser.num_calls

    def read(self, text: str, is_last: bool) -> MessagePart:
        """Read the next part of the text; one delta for each call, because clients add them up by index."""
        if self._parser is None:
            return MessagePart(text, "", [])
        parsed = self._parser.feed(text)
        if is_last:
            _append(parsed, self._parser.finish())
        calls: dict[int, ToolCallDelta] = {}
        arguments: dict[int, list[str]] = {}
        for part in parsed.calls:
            calls.setdefault(part.index, _delta(part))
            arguments.setdefault(part.index, []).append(part.arguments)
        for index, call in calls.items():
            call.function.arguments = "".join(arguments[index])
        return MessagePart(parsed.content, parsed.reasoning if self._has_reasoning else "", list(calls.values()))


def whole_calls(part: MessagePart) -> list[ToolCall] | None:
    """The calls of a text that was read in one part."""
    return [
        ToolCall(id=call.id, function=CalledFunction(name=call.function.name or "", arguments=call.function.arguments))
        for call in part.calls
    ] or None


def _delta(part: CallPart) -> ToolCallDelta:
    if part.name is None:
        return ToolCallDelta(index=part.index, function=FunctionDelta(arguments=""))
    function = FunctionDelta(name=part.name, arguments="")
    return ToolCallDelta(index=part.index, id=f"call_{uuid.uuid4().hex[:24]}", type="function", function=function)


def _append(parsed: Parsed, more: Parsed) -> None:
    parsed.content += more.content
    parsed.reasoning += more.reasoning
    parsed.calls += more.calls
