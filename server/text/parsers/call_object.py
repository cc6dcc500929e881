"""The JSON object of one tool call, read character by character: its name, and the text of its arguments.

A parser of partial JSON, such as `pydantic_core.from_json(allow_partial=...)`, returns values instead of text for the
client, reads all text again for every piece, and does not report where the object ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import TypeVar

BLANKS = " \t\r\n"
ARGUMENTS = ("arguments", "parameters")  # keys
_CLOSING = {"{": "}", "[": "]"}
_FIRST_OF_TOKEN = frozenset("-0123456789tfn")
_TOKEN = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false|null")
T = TypeVar("T")
CharReader = Generator[None, str, T]  # is sent single characters, and returns when it has read its element


class _BrokenError(Exception):
    """The character is not allowed here."""


class CallObject:
    """`{"name": "...", "arguments": {...}}` in any order. Other keys are ignored; of equal keys the first counts.

    `parameters` is the same as `arguments`. If the arguments are a JSON string that holds an object, that object is
    taken, because some models write arguments so.
    """

    def __init__(self, name: str | None = None) -> None:
        """Read a whole call, or with a `name` its arguments only."""
        self.name = name
        self.has_arguments = False  # they have begun
        self.is_complete = False
        self.is_broken = False  # the next character is not allowed: this is no call
        self._text: list[str] = []
        self._arguments: list[str] = []
        self._reader = self._object() if name is None else self._bare_arguments()
        next(self._reader)

    @property
    def text(self) -> str:
        """The text that has been read."""
        return "".join(self._text)

    def feed(self, text: str) -> int:
        """Read up to the object's end, or to a character that breaks it; return the number of characters."""
        count = len(text)
        for position, char in enumerate(text):
            try:
                self._reader.send(char)
            except StopIteration:
                self.is_complete, count = True, position + 1
                break
            except _BrokenError:
                self.is_broken, count = True, position
                break
        self._text.append(text[:count])
        return count

    def take_arguments(self) -> str:
        """Return the text of the arguments since the last call."""
        taken = "".join(self._arguments)
        self._arguments.clear()
        return taken

    def _bare_arguments(self) -> CharReader[None]:
        char = yield from _next()
        _require(char == "{")
        yield from _nested(char, self._keep_argument)

    def _object(self) -> CharReader[None]:
        char = yield from _next()
        _require(char == "{")
        while char != "}":
            key = yield from _quoted((yield from _next()))
            _require((yield from _next()) == ":")
            char = yield from self._value(key)
            _require(char in ",}")
        _require(self.name is not None)

    def _value(self, key: str) -> CharReader[str]:
        """Read the value of `key`; return the character after it."""
        first = yield from _next()
        if key in ARGUMENTS and first != '"' and not self.has_arguments:
            return (yield from _any(first, self._keep_argument))
        parts: list[str] = []
        after = yield from _any(first, parts.append)
        if key in ARGUMENTS and not self.has_arguments:
            self._keep_argument(_unwrapped("".join(parts)))
        if key == "name" and self.name is None:
            self.name = _unquote("".join(parts))
            _require(self.name != "")
        return after

    def _keep_argument(self, text: str) -> None:
        self.has_arguments = True
        self._arguments.append(text)


def _require(is_so: bool) -> None:
    if not is_so:
        raise _BrokenError


def _next() -> CharReader[str]:
    """Read the next character that is not blank."""
    while (char := (yield)) in BLANKS:
        pass
    return char


def _quoted(first: str) -> CharReader[str]:
    """Read a JSON string that begins with `first`; return it without quotes and escapes."""
    _require(first == '"')
    parts: list[str] = []
    yield from _string(parts.append)
    return _unquote("".join(parts))


def _string(keep: Callable[[str], None]) -> CharReader[None]:
    """Read a string after its first quote, which is kept too."""
    keep('"')
    char = ""
    while char != '"':
        char = yield
        keep(char)
        if char == "\\":
            keep((yield))


def _any(first: str, keep: Callable[[str], None]) -> CharReader[str]:
    """Read any JSON value that begins with `first`; return the character after it."""
    if first == '"':
        yield from _string(keep)
    elif first in _CLOSING:
        yield from _nested(first, keep)
    else:
        return (yield from _bare(first, keep))
    return (yield from _next())


def _nested(first: str, keep: Callable[[str], None]) -> CharReader[None]:
    """Read an object or array. `first` is kept together with the next character, so `{no JSON` keeps nothing.

    Open brackets are in a list instead of a recursion, as a text may open any number of them.
    """
    closing, held, place, char = [_CLOSING[first]], first, "first", ""
    while closing:
        char = char or (yield)
        if char in BLANKS:
            held, char = held + char, ""
            continue
        is_key = closing[-1] == "}" and place in ("first", "key")
        _require(_is_allowed(char, place, closing[-1], is_key))
        keep(held)
        held, after = "", ""
        if char == '"':
            yield from _string(keep)
        elif _is_bare(char):
            after = yield from _token(char, keep)
        else:
            keep(char)
        place = _next_place(char, closing, is_key)
        char = after


def _is_allowed(char: str, place: str, closing: str, is_key: bool) -> bool:
    """Return whether a character is allowed at this place of an object or array, which `closing` ends."""
    if char == closing:
        return place in ("first", "end")
    if place in ("end", "colon"):
        return char == ("," if place == "end" else ":")
    return char == '"' or (not is_key and (char in _CLOSING or _is_bare(char)))


def _next_place(char: str, closing: list[str], is_key: bool) -> str:
    """Return the place after the element that began with `char`; open and close brackets in `closing`."""
    if char in _CLOSING:
        closing.append(_CLOSING[char])
        return "first"
    if char == closing[-1]:
        closing.pop()
        return "end"
    if char in ",:":
        return "key" if char == "," and closing[-1] == "}" else "value"
    return "colon" if is_key else "end"


def _bare(first: str, keep: Callable[[str], None]) -> CharReader[str]:
    """Read a number, true, false or null; return the next character that is not blank."""
    _require(_is_bare(first))
    char = yield from _token(first, keep)
    return (yield from _next()) if char in BLANKS else char


def _token(first: str, keep: Callable[[str], None]) -> CharReader[str]:
    """Read and keep a number, true, false or null; return the character after it."""
    _require(first in _FIRST_OF_TOKEN)
    parts, char = [], first
    while _is_bare(char):
        keep(char)
        parts.append(char)
        char = yield
    _require(_TOKEN.fullmatch("".join(parts)) is not None)
    return char


def _is_bare(char: str) -> bool:
    return char.isalnum() or char in "+-."


def _unwrapped(token: str) -> str:
    """Return the object in a JSON string of arguments; the string itself if it holds none."""
    text = _unquote(token)
    if not text:
        return "{}"
    try:
        return text if isinstance(json.loads(text), dict) else token
    except (ValueError, RecursionError):
        return token


def _unquote(token: str) -> str:
    """Return the text of a JSON string. Raises _BrokenError when it is none."""
    try:
        value = json.loads(token, strict=False)
        _require(isinstance(value, str))
        value.encode()  # fails for half a surrogate pair, which could not be sent
    except ValueError:
        raise _BrokenError from None
    return str(value)
