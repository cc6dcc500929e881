"""Parser of tool calls in the Hermes form, in a model's text as it comes.

The form is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`. What is no such call goes through as content.
Arguments go through as the model wrote them, piece by piece, so a client gets them as early as it can. However the text
is cut into parts, the sum of what comes out is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from server.api.tools.call_object import CallObject

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of one call: its first has the name, the others more of the arguments' text."""

    index: int
    name: str | None
    arguments: str


@dataclass(slots=True)
class Parsed:
    """Content and call parts that were not returned before."""

    content: str = ""
    calls: list[CallPart] = field(default_factory=list)


class ToolText:
    """Reads the text of one choice. Calls beyond `max_calls` are left out; None = no limit."""

    def __init__(self, max_calls: int | None = None) -> None:
        self.num_calls = 0
        self._max_calls = max_calls
        self._rest = ""  # not read yet: shorter than a tag, or the beginning of a call
        self._blanks = ""  # white space that is content only if content follows
        self._has_content = False
        self._call: CallObject | None = None  # the call that is being read
        self._is_begun = False  # its part with the name has been returned
        self._is_closing = False  # all that counts of it is read; up to its closing tag nothing does

    def feed(self, text: str) -> Parsed:
        """Read the next part of the text."""
        parsed = Parsed()
        self._rest += text
        while self._step(parsed):
            pass
        return parsed

    def finish(self) -> Parsed:
        """Return what is still held back, when the text has ended."""
        parsed = Parsed()
        if self._call is None:
            self._content(self._rest, parsed)
        elif not self._is_begun:
            self._content(OPEN + self._call.text, parsed)
        if self._blanks and not self.num_calls:
            self._put(self._blanks, parsed)
        self._rest = self._blanks = ""
        return parsed

    def _step(self, parsed: Parsed) -> bool:
        """Read one stretch of the rest; True when there may be another."""
        if self._call is None:
            return self._read_content(parsed)
        return self._skip_to_close() if self._is_closing else self._read_call(self._call, parsed)

    def _read_content(self, parsed: Parsed) -> bool:
        before, tag, after = self._rest.partition(OPEN)
        if tag:
            self._rest, self._call = after, CallObject()
            self._is_begun = self._is_closing = False
            self._content(before, parsed)
            return True
        cut = len(before) - _overlap(before, OPEN)
        self._rest = before[cut:]
        self._content(before[:cut], parsed)
        return False

    def _read_call(self, call: CallObject, parsed: Parsed) -> bool:
        self._rest = self._rest[call.feed(self._rest) :]
        if call.name is not None and (call.has_arguments or call.is_complete):
            self._emit(call, parsed)
        if call.is_broken and not self._is_begun:
            self._call = None
            self._content(OPEN + call.text, parsed)
        self._is_closing = call.is_complete or (call.is_broken and self._is_begun)
        return call.is_complete or call.is_broken

    def _emit(self, call: CallObject, parsed: Parsed) -> None:
        """Return the name, once, and the new part of the arguments; a call without any has an empty object."""
        arguments = call.take_arguments() if call.has_arguments else "{}"
        is_first, self._is_begun = not self._is_begun, True
        self.num_calls += is_first
        if self._max_calls is None or self.num_calls <= self._max_calls:
            index = self.num_calls - 1
            if is_first:
                parsed.calls.append(CallPart(index, call.name, ""))
            if arguments:
                parsed.calls.append(CallPart(index, None, arguments))

    def _skip_to_close(self) -> bool:
        _, tag, after = self._rest.partition(CLOSE)
        if not tag:
            self._rest = self._rest[len(self._rest) - _overlap(self._rest, CLOSE) :]
            return False
        self._rest, self._call = after, None
        return True

    def _content(self, text: str, parsed: Parsed) -> None:
        """Return text as content, without blanks around calls."""
        text = self._blanks + text
        kept = text.rstrip()
        self._blanks = text[len(kept) :]
        if not self._has_content and self.num_calls:
            kept = kept.lstrip()
        if kept:
            self._put(kept, parsed)

    def _put(self, text: str, parsed: Parsed) -> None:
        parsed.content += text
        self._has_content = True


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that `tag` begins with."""
    return next((size for size in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:size])), 0)
