"""Messages of the assistant: content, reasoning and tool calls, read from a choice's text whole or in parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from ...text.parsers.output import CallPart, OutputParser, Parsed
from ..http.chance import hex_digits
from ..wire.tools import (
    INPUT,
    CalledCustom,
    CalledFunction,
    CustomCallDelta,
    CustomToolCall,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)


@dataclass(frozen=True, slots=True)
class MessagePart:
    """Content, reasoning and tool calls of a message or of a part of one."""

    content: str
    reasoning: str
    calls: list[ToolCallDelta]
    custom_calls: list[CustomCallDelta] = field(default_factory=list)  # each whole


class MessageReader:
    """Reads the text of one choice as a message; without a parser all of it is content."""

    def __init__(
        self, parser: OutputParser | None, has_reasoning: bool = True, custom: frozenset[str] = frozenset()
    ) -> None:
        """`has_reasoning` False leaves reasoning out. Calls of `custom` tools are held back until they are whole."""
        self._parser = parser
        self._has_reasoning = has_reasoning
        self._custom = custom
        self._held: ToolCallDelta | None = None  # the custom call that is being written

    @property
    def num_calls(self) -> int:
        return 0 if self._parser is None else self._parser.num_calls

    def read(self, text: str, is_last: bool) -> MessagePart:
        """Read the next part of the text. Each call has one delta, because clients add deltas up by index."""
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
        custom = self._custom_calls(calls, is_last) if self._custom else []
        return MessagePart(
            parsed.content, parsed.reasoning if self._has_reasoning else "", list(calls.values()), custom
        )

    def _custom_calls(self, calls: dict[int, ToolCallDelta], is_last: bool) -> list[CustomCallDelta]:
        """Take the pieces of custom calls out of `calls`, and return the calls that are whole."""
        whole: list[CustomCallDelta] = []
        for index, call in list(calls.items()):
            if self._held is not None and index == self._held.index:
                self._held.function.arguments += calls.pop(index).function.arguments
                continue
            whole += self._release()
            if call.function.name in self._custom:
                self._held = calls.pop(index)
        return whole + (self._release() if is_last else [])

    def _release(self) -> list[CustomCallDelta]:
        held, self._held = self._held, None
        if held is None:
            return []
        custom = CalledCustom(name=held.function.name or "", input=_text_of(held.function.arguments))
        return [CustomCallDelta(index=held.index, id=held.id or "", custom=custom)]


def whole_calls(part: MessagePart) -> list[ToolCall | CustomToolCall] | None:
    """Return the calls of a text that was read in one part, in their order."""
    found: dict[int, ToolCall | CustomToolCall] = {
        call.index: ToolCall(
            id=call.id, function=CalledFunction(name=call.function.name or "", arguments=call.function.arguments)
        )
        for call in part.calls
    }
    found |= {call.index: CustomToolCall(id=call.id, type="custom", custom=call.custom) for call in part.custom_calls}
    return [found[index] for index in sorted(found)] or None


def arguments_of(text: str) -> dict[str, Any]:
    """Return the arguments of a call as an object; if the output was cut, the part that is there."""
    try:
        value = from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _text_of(arguments: str) -> str:
    """Return the one argument of a custom tool, or the text as it is if it has no such argument."""
    text = arguments_of(arguments).get(INPUT)
    return text if isinstance(text, str) else arguments


def _delta(part: CallPart) -> ToolCallDelta:
    if part.name is None:
        return ToolCallDelta(index=part.index, function=FunctionDelta(arguments=""))
    function = FunctionDelta(name=part.name, arguments="")
    return ToolCallDelta(index=part.index, id=f"call_{hex_digits()[:24]}", type="function", function=function)


def _append(parsed: Parsed, more: Parsed) -> None:
    parsed.content += more.content
    parsed.reasoning += more.reasoning
    parsed.calls += more.calls
