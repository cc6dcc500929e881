"""Incremental conversion of Python's literals and keyword arguments to JSON.

A parser of Python, such as `ast`, needs the whole text, and returns values instead of text that can be sent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

from .source import MAX_NAME_CHARS, Event, Reader, Source, json_text

MAX_DEPTH = 32  # of nested lists and dicts
MAX_WORD_CHARS = 400  # of a number
_AFTER_WORD = " \t\r\n,:=()[]{}'\""
_AFTER_BARE = ",]}\n<"  # end of text without quotes
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": "", "\\": "\\", "'": "'", '"': '"', "/": "/"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def keyword_arguments(source: Source) -> Reader[bool]:
    """Read `name=value, ...)` as a JSON object; return False before text that is not allowed there."""
    return (yield from _bracketed(source, ")", "{}", lambda: _keyword(source)))


def braced_arguments(source: Source, quote: str) -> Reader[bool]:
    """Read `name:value, ...}`, in which text may also be between two of `quote`, as a JSON object; else as above."""
    return (yield from _bracketed(source, "}", "{}", lambda: _entry(source, MAX_DEPTH, quote)))


def _keyword(source: Source) -> Reader[bool]:
    name = yield from source.up_to(_AFTER_WORD, MAX_NAME_CHARS)
    yield from source.blanks()
    if not name or not (yield from source.literal(("=",))):
        return False
    yield Event("arguments", json.dumps(name, ensure_ascii=False) + ": ")
    return (yield from _value(source, MAX_DEPTH))


def _value(source: Source, depth: int, quote: str = "") -> Reader[bool]:
    """Read a literal. With a `quote`, other words are text too."""
    yield from source.blanks()
    if quote and (yield from source.literal((quote,))):
        return (yield from _raw(source, quote))
    one = yield from source.char()
    if one in ("[", "(") and depth:
        return (
            yield from _bracketed(source, "]" if one == "[" else ")", "[]", lambda: _value(source, depth - 1, quote))
        )
    if one == "{" and depth:
        return (yield from _bracketed(source, "}", "{}", lambda: _entry(source, depth - 1, quote)))
    if one in ("'", '"'):
        return (yield from _string(source, one))
    source.give_back(one)
    if quote:
        word = (yield from source.up_to(_AFTER_BARE, MAX_WORD_CHARS)).rstrip()
        yield Event("arguments", _word(word) or json.dumps(word, ensure_ascii=False))
        return True
    text = _word((yield from source.up_to(_AFTER_WORD, MAX_WORD_CHARS)))
    yield Event("arguments", text)
    return text != ""


def _entry(source: Source, depth: int, quote: str = "") -> Reader[bool]:
    """Read `key: value` of a dict; a key that is no string becomes one."""
    if mark := (yield from source.literal(("'", '"', *((quote,) if quote else ())))):
        if not (yield from (_raw if mark == quote else _string)(source, mark)):
            return False
    elif key := (yield from source.up_to(_AFTER_WORD, MAX_WORD_CHARS)):
        yield Event("arguments", json.dumps(key, ensure_ascii=False))
    else:
        return False
    yield from source.blanks()
    if not (yield from source.literal((":",))):
        return False
    yield Event("arguments", ": ")
    return (yield from _value(source, depth, quote))


def _bracketed(source: Source, closing: str, brackets: str, item: Callable[[], Reader[bool]]) -> Reader[bool]:
    """Read `item, item` up to `closing`, as JSON between `brackets`."""
    yield Event("arguments", brackets[0])
    between = ""
    while True:
        yield from source.blanks()
        if (yield from source.literal((closing,))):
            yield Event("arguments", brackets[1])
            return True
        yield Event("arguments", between)
        between = ", "
        if not (yield from item()):
            return False
        yield from source.blanks()
        if not (yield from source.literal((",",))) and not (yield from source.is_next(closing)):
            return False


def _raw(source: Source, quote: str) -> Reader[bool]:
    """Read text without escapes up to `quote`."""
    yield Event("arguments", '"')
    mark = yield from source.until((quote,), "arguments", json_text)
    yield Event("arguments", '"' if mark else "")
    return mark != ""


def _string(source: Source, quote: str) -> Reader[bool]:
    yield Event("arguments", '"')
    while mark := (yield from source.until((quote, "\\"), "arguments", json_text)):
        if mark == quote:
            yield Event("arguments", '"')
            return True
        yield from _escape(source)
    return False


def _escape(source: Source) -> Reader[None]:
    """Read the text after a backslash; an escape that Python does not have stays as it is."""
    one = yield from source.char()
    size = _HEX_DIGITS.get(one, 0)
    digits = ""
    while len(digits) < size and (digit := (yield from source.char())):
        if digit not in "0123456789abcdefABCDEF":
            source.give_back(digit)
            break
        digits += digit
    code = int(digits, 16) if size and len(digits) == size else -1
    if 0 <= code <= 0xFFFF:
        yield Event("arguments", f"\\u{code:04x}")  # may be half of a surrogate pair
    elif 0 <= code <= 0x10FFFF:
        yield Event("arguments", json_text(chr(code)))
    else:
        text = _ESCAPES.get(one) if not size else None
        yield Event("arguments", json_text("\\" + one + digits if text is None else text))


def _word(text: str) -> str:
    """Return a number or constant as JSON; "" if it is neither."""
    if _NUMBER.fullmatch(text):
        return text
    if text in _WORDS:
        return _WORDS[text]
    try:
        number: float = int(text, 0)
    except ValueError:
        try:
            number = float(text)
        except ValueError:
            return ""
    return json.dumps(number) if math.isfinite(number) else ""


def value_json(text: str) -> str | None:
    """Return a literal as JSON; None if `text` is none."""
    source = Source()
    source.push(text)
    source.is_ended = True
    parts: list[str] = []
    reader = _value(source, MAX_DEPTH)
    while True:
        try:
            event = next(reader)
        except StopIteration as stop:
            return "".join(parts) if stop.value and not source.peek(1) else None
        parts.append(event.text if event is not None else "")
