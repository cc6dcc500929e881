"""A model's output as a message: content, reasoning and calls, from the events of a reader (`source.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from .source import Event, Read, Source


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of one call: the first has the name, further pieces have text of the arguments."""

    index: int
    name: str | None
    arguments: str


@dataclass(slots=True)
class Parsed:
    """Content, reasoning and calls that were not returned before."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallPart] = field(default_factory=list)


class _Tidy:
    """Text without the white space that separates it from other elements."""

    def __init__(self) -> None:
        self.is_begun = False
        self._blanks: list[str] = []

    def add(self, text: str, is_first: bool) -> str:
        """Return the text that may be sent. `is_first`: the text is first, so it keeps its leading white space."""
        kept = text.rstrip()
        if not kept:
            self._blanks.append(text)
            return ""
        whole = "".join(self._blanks) + kept
        self._blanks = [text[len(kept) :]]
        if not self.is_begun and not is_first:
            whole = whole.lstrip()
        self.is_begun = True
        return whole

    def end(self) -> str:
        """Return the white space that was held back."""
        return "".join(self._blanks)


class OutputParser:
    """Reads the text of one choice by `read`. Calls beyond `max_calls` are left out; None = no limit.

    White space between reasoning, content and calls is dropped. The result does not depend on how the text is cut.
    """

    def __init__(self, read: Read, max_calls: int | None = None) -> None:
        self.num_calls = 0
        self._max_calls = max_calls
        self._source = Source()
        self._events = read(self._source)
        self._content, self._reasoning = _Tidy(), _Tidy()
        self._has_reasoning = False

    def feed(self, text: str) -> Parsed:
        """Read the next piece of the text."""
        self._source.push(text)
        return self._read()

    def finish(self) -> Parsed:
        """Return the text that is still held back, when the text has ended."""
        self._source.is_ended = True
        parsed = self._read()
        blanks = self._content.end()
        if not (self.num_calls or (self._has_reasoning and not self._content.is_begun)):
            parsed.content += blanks
        return parsed

    def _read(self) -> Parsed:
        parsed = Parsed()
        for event in self._events:
            if event is None:
                break
            self._take(event, parsed)
        return parsed

    def _take(self, event: Event, parsed: Parsed) -> None:
        if event.kind == "content":
            parsed.content += self._content.add(event.text, not (self.num_calls or self._has_reasoning))
        elif event.kind == "reasoning":
            self._has_reasoning = True
            parsed.reasoning += self._reasoning.add(event.text, is_first=False)
        elif event.text:
            self._take_call(event, parsed)

    def _take_call(self, event: Event, parsed: Parsed) -> None:
        self.num_calls += event.kind == "call"
        if self._max_calls is None or self.num_calls <= self._max_calls:
            is_name = event.kind == "call"
            part = (event.text, "") if is_name else (None, event.text)
            parsed.calls.append(CallPart(self.num_calls - 1, *part))
