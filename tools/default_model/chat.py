"""Messages as text and tokens by the shipped chat template, the same for training and serving."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from tools.default_model.item import Message, Tool

PACKAGE_DIR = Path(__file__).resolve().parents[2] / "server" / "default_model"
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
ANSWER = re.compile(r"(?<=<\|im_start\|>assistant\n).*?<\|im_end\|>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Document:
    """Tokens of one conversation, with a flag for each that is the assistant's (its end of turn included)."""

    ids: list[int]
    is_answer: list[bool]


def _tojson(value: Any, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class Chat:
    """Renders and encodes conversations with the template and tokenizer of `directory`."""

    def __init__(self, directory: Path = PACKAGE_DIR) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _tojson
        self.template = environment.from_string((directory / "chat_template.jinja").read_text())
        self._tokenizer_file = directory / "tokenizer.json"
        self._tokenizer: Any = None

    @property
    def tokenizer(self) -> Any:
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.from_file(str(self._tokenizer_file))
        return self._tokenizer

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, is_prompt: bool = False) -> str:
        """Return the conversation as text; `is_prompt` opens the assistant's turn at its end."""
        return self.template.render(messages=list(messages), tools=list(tools) or None, add_generation_prompt=is_prompt)

    def encode_prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        ids: list[int] = self.tokenizer.encode(self.render(messages, tools, is_prompt=True)).ids
        return ids

    def encode(self, conversations: Sequence[tuple[Sequence[Message], Sequence[Tool]]]) -> list[Document]:
        """Return the tokens of whole conversations, the assistant's marked."""
        texts = [self.render(messages, tools) for messages, tools in conversations]
        encodings = self.tokenizer.encode_batch(texts)
        return [
            Document(encoding.ids, _marks(encoding.offsets, [m.span() for m in ANSWER.finditer(text)]))
            for text, encoding in zip(texts, encodings, strict=True)
        ]


def _marks(offsets: list[tuple[int, int]], spans: list[tuple[int, int]]) -> list[bool]:
    """Return flags of the tokens that lie in one of the character spans."""
    marks, current = [], 0
    for start, _ in offsets:
        while current < len(spans) and start >= spans[current][1]:
            current += 1
        marks.append(current < len(spans) and start >= spans[current][0])
    return marks
