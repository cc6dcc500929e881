"""An exercise of the corpus: a conversation, its reference answer, and the check of an answer. For all families."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

Message = dict[str, Any]  # as in the OpenAI chat API
Tool = dict[str, Any]  # {"type": "function", "function": {...}}
Check = Callable[[str], bool]
Make = Callable[[Random], "Item"]

HELD_OUT_SHARE = 16  # one key in this many is never trained on


@dataclass(frozen=True, slots=True)
class Item:
    """An exercise. `messages` ends with the reference answer; items with the same `key` are the same exercise."""

    key: str
    messages: tuple[Message, ...]
    check: Check  # receives the answer's text (tool calls in their `<tool_call>` form)
    tools: tuple[Tool, ...] = ()

    @property
    def prompt(self) -> tuple[Message, ...]:
        return self.messages[:-1]

    @property
    def answer(self) -> str:
        return assistant_text(self.messages[-1])


def single(key: str, prompt: str, answer: str, check: Check | None = None) -> Item:
    """Make an item of one question and one answer, judged by equality unless `check` is given."""
    messages = (user(prompt), assistant(answer))
    return Item(key=key, messages=messages, check=check or equals(answer))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def is_held_out(family: str, key: str) -> bool:
    """Return whether the exercise is held out; family and key alone decide, so the split is disjoint."""
    digest = hashlib.blake2b(f"{family}\0{key.lower()}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_SHARE == 0


def assistant_text(message: Message) -> str:
    """Return the text of an assistant message as the chat template writes it, tool calls included."""
    parts = [message["content"].strip()] if message.get("content") else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        parts.append(f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {text}}}\n</tool_call>')
    return "\n".join(parts)


def equals(*accepted: str) -> Check:
    """Check for any of the accepted texts, ignoring outer blanks."""
    wanted = {text.strip() for text in accepted}
    return lambda answer: answer.strip() in wanted


def contains(*needed: str) -> Check:
    """Check that every needed text occurs, ignoring case."""
    lowered = [text.lower() for text in needed]
    return lambda answer: all(text in answer.lower() for text in lowered)


def last_number(value: int) -> Check:
    """Check that the last whole number of the answer is `value`."""
    return lambda answer: (re.findall(r"-?\d+", answer) or [""])[-1] == str(value)


def json_equals(value: Any) -> Check:
    """Check that the answer is one JSON text, nothing around it, equal to `value`."""

    def check(answer: str) -> bool:
        try:
            return bool(msgspec.json.decode(answer) == value)
        except ValueError:
            return False

    return check


def calls_equal(calls: list[dict[str, Any]]) -> Check:
    """Check that the answer is exactly these tool calls, in order."""

    def check(answer: str) -> bool:
        found = re.findall(r"<tool_call>\s*(.*?)\s*</tool_call>", answer, re.DOTALL)
        try:
            return [msgspec.json.decode(text) for text in found] == calls
        except ValueError:
            return False

    return check
