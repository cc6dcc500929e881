"""Calls that are JSON objects, alone or in an array, after a mark: Hermes, Granite, Phi, Llama, Mistral."""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

from .call_object import CallObject
from .source import MAX_NAME_CHARS, Event, Functions, Reader, Source

HERMES = ("<tool_call>", "</tool_call>")
GRANITE = ("<|tool_call|>", "<tool_call>")
NEMOTRON = ("<TOOLCALL>", "</TOOLCALL>")
HUNYUAN = ("<tool_calls>", "</tool_calls>")
PHI = ("<|tool_call|>", "<|/tool_call|>")
LLAMA = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")
MISTRAL = CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_PIECE = 512  # characters that are read together

End = Literal["none", "broken", "whole"]  # no call; a call that breaks off; a whole call


def read_object(source: Source, call: CallObject, before: str, names: Container[str] | None = None) -> Reader[End]:
    """Read an object; yield a call as soon as its name is known.

    An object that is no call is content, after the text `before` it; the source is then at the character that broke it.
    With `names`, a call must have one of them, and arguments.
    """
    is_begun = False
    while not (call.is_complete or call.is_broken):
        if not len(source):
            if source.is_ended:
                break
            yield None
            continue
        source.take(call.feed(source.peek(_PIECE)))
        if call.name is not None and names is not None and call.name not in names:
            break
        if call.name is None or not (call.has_arguments or (call.is_complete and names is None)):
            continue
        if not is_begun:
            is_begun = True
            yield Event("call", call.name)
        if arguments := call.take_arguments() if call.has_arguments else "{}":
            yield Event("arguments", arguments)
    if not is_begun:
        yield Event("content", before + call.text)
        return "none"
    return "whole" if call.is_complete else "broken"


def read_array(source: Source, before: str) -> Reader[bool]:
    """Read `[object, object]` to its end, or to a broken object; return whether it has a call."""
    before += yield from source.blanks()
    if not (bracket := (yield from source.literal(("[",)))):
        yield Event("content", before)
        return False
    before += bracket + (yield from source.blanks())
    has_call = False
    while True:
        end = yield from read_object(source, CallObject(), "" if has_call else before)
        has_call = has_call or end != "none"
        if end != "whole":
            return has_call
        yield from source.blanks()
        if (yield from source.literal((",", "]"))) != ",":
            return True
        yield from source.blanks()


def read_hermes(source: Source, _functions: Functions) -> Reader[None]:
    """Read `<tool_call>{...}</tool_call>`. Text between a call and its closing tag is dropped."""
    opening, closing = HERMES
    while (yield from source.until((opening,), "content")):
        if (yield from read_object(source, CallObject(), opening)) != "none":
            yield from source.until((closing,), None)


def read_arrays(source: Source, _functions: Functions, opening: tuple[str, ...], closing: str) -> Reader[None]:
    """Read `opening [{...}, {...}] closing`, where `opening` has alternatives and the closing mark may be missing."""
    while mark := (yield from source.until(opening, "content")):
        if (yield from read_array(source, mark)):
            space = yield from source.blanks()
            yield Event("content", "" if (yield from source.literal((closing,))) else space)


def read_phi(source: Source, _functions: Functions) -> Reader[None]:
    """Read `functools[{...}, {...}]`, or the array between `<|tool_call|>` and `<|/tool_call|>`."""
    opening, closing = PHI
    while mark := (yield from source.until(("functools[", opening), "content")):
        if mark != opening:
            source.give_back("[")
        if (yield from read_array(source, mark.removesuffix("["))):
            yield from source.blanks()
            yield from source.literal((closing,))


def read_llama(source: Source, functions: Functions) -> Reader[None]:
    """Read `{"name": ..., "parameters": {...}}` anywhere, and after a mark; more calls follow `;` or `,`.

    Any JSON in an answer might be a call, so a call must have the name of a function, and must begin with the name
    unless it is at the beginning of the message or after a mark.
    """
    opening, closing = LLAMA[:2], LLAMA[2:]
    before = yield from source.blanks()
    before += (yield from source.literal(opening)) + (yield from source.blanks())
    while True:
        while (yield from source.is_next("{")):
            if (yield from read_object(source, CallObject(), before, functions)) != "whole":
                before = ""
                break
            before = yield from source.blanks()
            mark = yield from source.literal((";", ",", *closing, *opening))
            before += ("" if mark in closing else mark) + (yield from source.blanks())
        yield Event("content", before if len(source) else before.strip(";, \t\r\n"))  # nothing follows
        mark = yield from _to_object(source, opening)
        if not mark:
            return
        before = "" if mark == "{" else mark + (yield from source.blanks())


def _to_object(source: Source, opening: tuple[str, ...]) -> Reader[str]:
    """Read content up to a mark of `opening`, which is taken, or up to `{"name"`, which is not.

    Return the mark, or "{"; "" if there is neither.
    """
    while (mark := (yield from source.until((*opening, "{"), "content"))) == "{":
        space = yield from source.blanks()
        if (yield from source.is_next('"name"')):
            source.give_back(mark + space)
            return mark
        yield Event("content", mark + space)
    return mark


def read_mistral(source: Source, _functions: Functions) -> Reader[None]:
    """Read `[TOOL_CALLS][{...}, {...}]`, or, since tokenizer version 11, `[TOOL_CALLS]name[ARGS]{...}` for each."""
    while mark := (yield from source.until((CALLS,), "content")):
        mark += yield from source.blanks()
        if (yield from source.is_next("[")):
            yield from read_array(source, mark)
        else:
            yield from _named_call(source, mark)


def _named_call(source: Source, before: str) -> Reader[None]:
    """Read `name[ARGS]{...}`; `[CALL_ID]id` may precede `[ARGS]`, and `[ARGS]` may be missing.

    Text between the mark and an array of calls is content.
    """
    name = yield from source.up_to("[{", MAX_NAME_CHARS)
    head = yield from source.literal((ARGS, CALL_ID))
    if head == CALL_ID:
        head += (yield from source.up_to("[{", MAX_NAME_CHARS)) + (yield from source.literal((ARGS,)))
    head += yield from source.blanks()
    if name.strip() and (yield from source.is_next("{")):
        yield from read_object(source, CallObject(name.strip()), before + name + head)
    elif not head and (yield from source.is_next("[")):
        yield Event("content", before + name)
        yield from read_array(source, "")
    else:
        yield Event("content", before + name + head)
