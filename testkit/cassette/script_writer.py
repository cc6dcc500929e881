"""A script out of recordings: one rule for each answer of OpenAI's text endpoints, for `serve --script`.

The pattern of a rule is the user's last text and the number of the user's messages.
"""

from __future__ import annotations

import glob
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from ...server.errors import StartError
from ...server.host.private_file import open_private
from ...server.typed_json import JsonError, convert, parse
from ..faults.rules import user_texts
from ..faults.sse import EventSplitter, payload_of
from .cassette import Recording

log = logging.getLogger("neuronserve.record")
SUFFIXES = (".yaml", ".yml")
_Texts = dict[str, str]


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None  # JSON, or a part of it


class _Call(msgspec.Struct, frozen=True):
    function: _Function
    index: int | None = None


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None
    tool_calls: tuple[_Call, ...] | None = None


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    text: str | None = None
    message: _Message | None = None
    delta: _Message | None = None


class _Content(msgspec.Struct, frozen=True):
    text: str | None = None


class _Item(msgspec.Struct, frozen=True):
    type: str
    content: tuple[_Content, ...] | None = None
    name: str | None = None
    arguments: str | None = None


class _Response(msgspec.Struct, frozen=True):
    output: tuple[_Item, ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    """An answer or an event: `choices` of chat and completions, the others of responses."""

    choices: tuple[_Choice, ...] = ()
    output: tuple[_Item, ...] = ()
    response: _Response | None = None


class ScriptWriter:
    """Writes the rules of all recordings to a file after each one, so that it is always whole."""

    def __init__(self, path: Path) -> None:
        """Begin the file. Raises StartError if it exists or cannot be written."""
        if path.exists():
            raise StartError(f"{path} exists: a script is recorded to a new file")
        self._path, self._rules = path, list[dict[str, Any]]()
        try:
            self._write()
        except OSError as error:
            raise StartError(f"cannot write {str(path)!r}: {error.strerror}") from error

    def add(self, recording: Recording) -> None:
        """Add a rule, or log why there is none. Raises OSError if the disk is full."""
        try:
            rule = rule_of(recording)
        except JsonError as error:
            log.warning("no rule for %s: %s", recording.request.path, error)
            return
        for earlier in self._rules:
            if earlier["match"] == rule["match"]:
                earlier["times"] = 1  # repeated requests are answered in the recorded order
        self._rules.append(rule)
        self._write()

    def close(self) -> None:
        """Do nothing: the file is whole."""

    def _write(self) -> None:
        text = yaml.safe_dump({"rules": self._rules}, allow_unicode=True, sort_keys=False, width=120)
        with open_private(self._path, "wb") as file:
            file.write(text.encode())


def rule_of(recording: Recording) -> dict[str, Any]:
    """Return the rule that gives a recorded answer. Raises JsonError if a script cannot."""
    if recording.status != 200:
        raise JsonError(f"its status is {recording.status}")
    body = recording.request.body
    texts = user_texts(body) if isinstance(body, dict) else []
    if not texts:
        raise JsonError("the request has no text of a user")
    text, calls = _output(recording)
    if not text and not calls:
        raise JsonError("the answer has neither text nor calls; rules are for chat, completions and responses")
    answer = {"text": text, "calls": calls} if calls else text
    return {"answer": answer, "match": {"message": glob.escape(texts[-1]), "turn": len(texts)}}


def _output(recording: Recording) -> tuple[str, list[dict[str, Any]]]:
    """Return the text and the calls of the first choice. Raises JsonError."""
    text, calls = "", dict[int, _Texts]()
    for answer in _answers(recording):
        for choice in (each for each in answer.choices if each.index == 0):
            part = choice.delta or choice.message or _Message()
            text += choice.text or part.content or ""
            for place, call in enumerate(part.tool_calls or ()):
                _join(calls, place if call.index is None else call.index, call.function)
        for item in (*answer.output, *(answer.response.output if answer.response else ())):
            text += "".join(part.text or "" for part in item.content or () if item.type == "message")
            if item.type == "function_call":
                _join(calls, len(calls), _Function(item.name, item.arguments))
    return text, [_call(each) for _, each in sorted(calls.items())]


def _answers(recording: Recording) -> Iterator[_Answer]:
    if "text/event-stream" not in recording.headers.get("content-type", ""):
        yield convert(parse(recording.data), _Answer)
        return
    for event in EventSplitter().feed(recording.data):
        payload = payload_of(event)
        if isinstance(payload, dict):
            yield convert(payload, _Answer)


def _join(calls: dict[int, _Texts], place: int, part: _Function) -> None:
    call = calls.setdefault(place, {"name": "", "arguments": ""})
    call["name"] += part.name or ""
    call["arguments"] += part.arguments or ""


def _call(texts: _Texts) -> dict[str, Any]:
    return {
        "name": texts["name"],
        "arguments": convert(parse(texts["arguments"] or "{}"), dict[str, Any], "arguments."),
    }
