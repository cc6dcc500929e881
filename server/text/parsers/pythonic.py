"""Calls in Python's form: `[f(a=1), g()]` at the message's beginning or after a mark, and Gemma's forms.

Without a mark, any list might be a list of calls, so a call must have the name of a function.
"""

from __future__ import annotations

from .json_calls import End
from .python_text import braced_arguments, keyword_arguments
from .source import MAX_NAME_CHARS, Event, Functions, Reader, Source

LLAMA = ("<|python_start|>", "<|python_end|>")
FENCE = ("```tool_code", "```")
LFM2 = ("<|tool_call_start|>", "<|tool_call_end|>")
OLMO = ("<function_calls>", "</function_calls>")
GEMMA4 = OPENING, CLOSING, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_BEFORE_VALUE = 3  # events: the name, "{" and a key
_AFTER_NAME = " \t\r\n,:=()[]{}'\"`<"


def read_pythonic(source: Source, functions: Functions) -> Reader[None]:
    """Read `[f(a=1), g()]`, which may be between `<|python_start|>` and `<|python_end|>`."""
    opening, closing = LLAMA
    before = yield from source.blanks()
    before += yield from source.literal((opening,))
    while True:
        if (yield from _calls(source, before, functions)):
            yield from source.blanks()
            yield from source.literal((closing,))
        if not (before := (yield from source.until((opening,), "content"))):
            return


def read_gemma(source: Source, functions: Functions) -> Reader[None]:
    """Read the calls of a fence, one a line or in a list, or a list at the message's beginning."""
    yield from _calls(source, (yield from source.blanks()), functions)
    yield from read_fenced(source, functions, FENCE)


def read_marked(source: Source, _functions: Functions, marks: tuple[str, str]) -> Reader[None]:
    """Read the calls between two marks that stand for nothing else; any name is a function's."""
    yield from read_fenced(source, None, marks)


def read_gemma4(source: Source, _functions: Functions) -> Reader[None]:
    """Read `<|tool_call>call:f{a:1,b:<|"|>text<|"|>}<tool_call|>`. Text between a call and its end is dropped."""
    while before := (yield from source.until((OPENING,), "content")):
        before += yield from source.literal(("call:",))
        name = yield from source.up_to("{<\n", MAX_NAME_CHARS)
        opened = yield from source.literal(("{",))
        if not name.strip() or not opened:
            yield Event("content", before + name + opened)
            continue
        yield Event("call", name.strip())
        yield from braced_arguments(source, QUOTE)
        yield from source.until((CLOSING,), None)


def read_fenced(source: Source, functions: Functions | None, marks: tuple[str, str]) -> Reader[None]:
    """Read the calls between two marks, one a line or in a list."""
    opening, closing = marks
    while before := (yield from source.until((opening,), "content")):
        while (yield from _calls(source, before, functions, is_bare=True)):
            before = yield from source.blanks()
            if (yield from source.literal((closing,))):
                break


def _call(source: Source, name: str, before: str) -> Reader[End]:
    """Read a call after its `(`; yield it when its first value has begun. Other text is content, after `before`."""
    held, is_begun, end = [Event("call", name)], False, False
    reader = keyword_arguments(source)
    source.hold()
    while True:
        try:
            event = next(reader)
        except StopIteration as stop:
            end = bool(stop.value)
            break
        if event is None or is_begun:
            yield event
        elif event.text:
            held.append(event)
            is_begun = len(held) > _BEFORE_VALUE
            if is_begun:
                source.release()
                yield from held
    text = source.release()
    if end and not is_begun:
        yield from held
    elif not is_begun:
        yield Event("content", before + text)
        return "none"
    return "whole" if end else "broken"


def _calls(source: Source, before: str, functions: Functions | None, is_bare: bool = False) -> Reader[bool]:
    """Read a list of calls, or a single call (`is_bare`); return whether it is complete. Other text is content.

    `functions` None: any name is a function's.
    """
    before += yield from source.blanks()
    bracket = yield from source.literal(("[",))
    before += bracket
    if not (bracket or is_bare):
        yield Event("content", before)
        return False
    has_call = False
    while True:
        before += yield from source.blanks()
        name = yield from source.up_to(_AFTER_NAME, MAX_NAME_CHARS)
        opened = yield from source.literal(("(",))
        is_known = bool(name) if functions is None else name in functions
        if not is_known or not opened:
            yield Event("content", before + name + opened)
            return False
        end = yield from _call(source, name, before + name + opened)
        if end == "broken":
            return False
        if end == "none":
            yield Event("content", (yield from source.until((")",), "content")))
        has_call = has_call or end == "whole"
        if not bracket:
            return has_call
        space = yield from source.blanks()
        before = yield from source.literal((",", "]"))
        if before != ",":
            yield Event("content", "" if has_call else space + before)
            return has_call and before == "]"
