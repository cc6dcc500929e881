"""Reading a text that comes in parts, as a client adds the deltas up."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neuronserve.server.text.parsers.call_formats import ToolParserName
from neuronserve.server.text.parsers.formats import REASONING, ReasoningParserName, output_reader
from neuronserve.server.text.parsers.output import OutputParser
from neuronserve.server.text.parsers.source import Functions

FUNCTIONS: Functions = {
    "f": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "unit": {"anyOf": [{"type": "string", "enum": ["C", "F"]}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    },
    "g": {},
}


@dataclass(frozen=True)
class Form:
    """Form of the text, and the prompt that it follows."""

    tools: ToolParserName = "none"
    reasoning: ReasoningParserName = "none"
    prompt: str = ""
    max_calls: int | None = None


@dataclass
class Message:
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] | None = None

    def add(self, index: int, name: str | None, arguments: str) -> None:
        calls = self.calls = self.calls or []
        if name is not None:
            assert index == len(calls)
            calls.append((name, ""))
        calls[index] = (calls[index][0], calls[index][1] + arguments)

    def values(self) -> list[tuple[str, object]]:
        """The calls with their arguments parsed."""
        return [(name, json.loads(arguments)) for name, arguments in self.calls or []]


def parser(form: Form) -> OutputParser:
    is_open = None if form.reasoning == "none" else REASONING[form.reasoning].thinking.is_open(form.prompt)
    return OutputParser(output_reader(form.tools, form.reasoning, FUNCTIONS, is_open), form.max_calls)


def read(parts: Sequence[str], form: Form) -> Message:
    message, reader = Message(), parser(form)
    for parsed in (*map(reader.feed, parts), reader.finish()):
        message.content += parsed.content
        message.reasoning += parsed.reasoning
        for part in parsed.calls:
            message.add(part.index, part.name, part.arguments)
    return message


def every_split(text: str) -> Iterator[list[str]]:
    """Whole, by characters, and in two parts at each place."""
    yield [text]
    yield list(text)
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]


def cut(text: str, seed: int) -> list[str]:
    """Parts of random sizes."""
    rng, parts = random.Random(seed), []
    while text:
        size = rng.randint(1, rng.choice((1, 3, 20)))
        parts.append(text[:size])
        text = text[size:]
    return parts
