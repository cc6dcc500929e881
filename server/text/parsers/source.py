"""The text of a model's output as it arrives, how readers take it, and the events that they make of it.

A reader is a generator over a `Source`. It yields an `Event` for text that it has read, and None when it needs more
text, so its position in the text is its position in the code. It never looks further than it needs, so its events do
not depend on how the text was cut, and every character is read a bounded number of times.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

BLANKS = " \t\r\n"
MAX_NAME_CHARS = 256  # of a function or a parameter; longer text is no name
Kind = Literal["content", "reasoning", "call", "arguments"]
T = TypeVar("T")


class Event(NamedTuple):
    """A piece of the output. A call is its name (`call`), then `arguments`, which are text of a JSON object."""

    kind: Kind
    text: str


Reader = Generator[Event | None, None, T]
Read = Callable[["Source"], Reader[None]]
Functions = dict[str, dict[str, Any]]  # JSON schema of the parameters of each function, by its name


class Source:
    """Text that arrives in pieces and is taken from its beginning."""

    def __init__(self) -> None:
        self.is_ended = False  # no more text will arrive
        self._text = ""
        self._at = 0
        self._held: int | None = None  # position at which `hold` was called

    def __len__(self) -> int:
        """Return the number of characters that have arrived and were not taken."""
        return len(self._text) - self._at

    def push(self, text: str) -> None:
        start = self._at if self._held is None else self._held
        self._text, self._at = self._text[start:] + text, self._at - start
        self._held = None if self._held is None else 0

    def hold(self) -> None:
        """Keep the text that is taken from now on, until `release`."""
        self._held = self._at

    def release(self) -> str:
        """Return the text that was taken since `hold`."""
        text = "" if self._held is None else self._text[self._held : self._at]
        self._held = None
        return text

    def peek(self, count: int) -> str:
        """Return at most `count` of the next characters."""
        return self._text[self._at : self._at + count]

    def tail(self, count: int) -> str:
        """Return at most `count` of the last characters."""
        return self._text[max(self._at, len(self._text) - count) :]

    def take(self, count: int) -> str:
        """Take and return at most `count` of the next characters."""
        taken = self.peek(count)
        self._at += len(taken)
        return taken

    def give_back(self, text: str) -> None:
        """Put back the text that was taken last, also if more text has arrived since then."""
        if self._at >= len(text):
            self._at -= len(text)
        else:
            self._text, self._at = text + self._text[self._at :], 0

    def search(self, marks: re.Pattern[str]) -> tuple[int, str] | None:
        """Return the position and the text of the first of `marks`."""
        found = marks.search(self._text, self._at)
        return (found.start() - self._at, found[0]) if found else None

    def until(self, marks: tuple[str, ...], kind: Kind | None, change: Callable[[str], str] = str) -> Reader[str]:
        """Yield text as `kind` (None: drop it) up to the first of `marks`; take and return the mark, "" at the end.

        Only text that may be the beginning of a mark is held back. `change` converts each piece of the text.
        """
        pattern, longest = _pattern(marks), max(map(len, marks), default=0)
        while True:
            found = self.search(pattern) if marks else None
            held = 0 if self.is_ended else overlap(self.tail(longest), marks)
            # A mark that begins earlier, or is longer, may still become whole.
            if found is not None and len(self) - held >= found[0] + len(found[1]):
                yield from _pass(self.take(found[0]), kind, change)
                return self.take(len(found[1]))
            yield from _pass(self.take(len(self) - held), kind, change)
            if self.is_ended:
                return ""
            yield None

    def gather(self, marks: tuple[str, ...]) -> Reader[tuple[str, str]]:
        """Return the text up to the first of `marks`, and the mark. Yields no event."""
        return (yield from gathered(self.until(marks, "content")))

    def char(self) -> Reader[str]:
        """Take the next character; "" at the text's end."""
        while not (taken := self.take(1)):
            if self.is_ended:
                return ""
            yield None
        return taken

    def literal(self, options: Sequence[str]) -> Reader[str]:
        """Take the longest of `options` that comes next; "" if none does."""
        longest = max(map(len, options))
        while True:
            rest = self.peek(longest)
            if self.is_ended or not any(option.startswith(rest) and option != rest for option in options):
                return self.take(max((len(option) for option in options if rest.startswith(option)), default=0))
            yield None

    def is_next(self, text: str) -> Reader[bool]:
        """Return whether `text` comes next, without taking it."""
        taken = yield from self.literal((text,))
        self.give_back(taken)
        return bool(taken)

    def up_to(self, ends: str, most: int) -> Reader[str]:
        """Take text up to one of the characters `ends`, which is not taken, or at most `most` characters."""
        taken = ""
        while len(taken) < most and (one := (yield from self.char())):
            if one in ends:
                self.give_back(one)
                break
            taken += one
        return taken

    def blanks(self) -> Reader[str]:
        """Take the white space that comes next."""
        taken = ""
        while (one := (yield from self.char())) in BLANKS and one:
            taken += one
        self.give_back(one)
        return taken


def gathered(reader: Reader[str]) -> Reader[tuple[str, str]]:
    """Return the text of all events of a reader, and its result. Yields no event."""
    parts: list[str] = []
    while True:
        try:
            event = next(reader)
        except StopIteration as stop:
            return "".join(parts), str(stop.value)
        if event is None:
            yield None
        else:
            parts.append(event.text)


@functools.cache
def _pattern(marks: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern of these texts, the longest first: an alternation that cannot backtrack."""
    return re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))


def content(source: Source) -> Reader[None]:
    """Yield all remaining text as content."""
    yield from source.until((), "content")


def json_text(text: str) -> str:
    """Return `text` as it is written inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def overlap(text: str, marks: Sequence[str]) -> int:
    """Return the length of the longest end of `text` that is a proper prefix of one of `marks`."""
    longest = max(map(len, marks), default=1) - 1
    for size in range(min(len(text), longest), 0, -1):
        if any(len(mark) > size and mark.startswith(text[-size:]) for mark in marks):
            return size
    return 0


def _pass(text: str, kind: Kind | None, change: Callable[[str], str]) -> Reader[None]:
    if text and kind is not None:
        yield Event(kind, change(text))
