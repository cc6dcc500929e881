"""Formats in which model families write calls and reasoning: a row each, found by its name or by the chat template.

Rows of calls are in call_formats.py. Signs are texts in the family's published chat templates that no template of an
earlier row has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from . import harmony
from .call_formats import CALLS, CallFormat, Signs, ToolParserName
from .shapes import Thinking
from .source import Event, Functions, Read, Reader, Source, content

ReasoningParserName = Literal[
    "openai_gptoss",
    "granite",
    "granite_3_3",
    "hunyuan_a13b",
    "ernie45",
    "mistral",
    "gemma4",
    "seed_oss",
    "qwen3",
    "deepseek_r1",
    "none",
]


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How reasoning is written. `reader` names the format of calls whose reader also reads the reasoning."""

    thinking: Thinking
    signs: Signs
    reader: ToolParserName | None = None
    tokens: tuple[str, ...] = ()  # marks that are tokens, if those are not all of the opening and the closing one

    @property
    def tags(self) -> tuple[str, ...]:
        """Marks that are tokens in vocabularies."""
        if self.reader:
            return CALLS[self.reader].tags
        return self.tokens or self.thinking.opening + self.thinking.closing


_THINK = ("<think>",), ("</think>",)
REASONING: dict[ReasoningParserName, ReasoningFormat] = {
    "openai_gptoss": ReasoningFormat(harmony.THINKING, (("<|channel|>", "analysis"),), "openai"),
    "granite": ReasoningFormat(
        Thinking(
            ("Here is my thought process:", "Here's my thought process:"),
            ("Here is my response:", "Here's my response:"),
        ),
        (("Here is my thought process",), ("Here's my thought process",)),
    ),
    "granite_3_3": ReasoningFormat(
        Thinking(*_THINK, answer="<response>", end="</response>"), (("<think></think>", "<response></response>"),)
    ),
    "hunyuan_a13b": ReasoningFormat(
        Thinking(*_THINK, answer="<answer>", end="</answer>"), (("<think>", "<answer>", "</answer>"),)
    ),
    "ernie45": ReasoningFormat(
        Thinking(*_THINK, answer="<response>", end="</response>"), (("cls_token", "<response>", "</response>"),)
    ),
    "mistral": ReasoningFormat(Thinking(("[THINK]",), ("[/THINK]",)), (("[THINK]",),)),
    "gemma4": ReasoningFormat(
        Thinking(("<|channel>thought\n",), ("<channel|>",)),
        (("<|channel>", "<channel|>"),),
        tokens=("<|channel>", "<channel|>"),
    ),
    "seed_oss": ReasoningFormat(Thinking(("<seed:think>",), ("</seed:think>",)), (("<seed:think>",),)),
    "deepseek_r1": ReasoningFormat(Thinking(*_THINK, is_assumed=True), (("</think>", "<｜Assistant｜>"),)),
    "qwen3": ReasoningFormat(Thinking(*_THINK), (("<think>",), ("</think>",))),
}


def parsers_for(chat_template: str | None) -> tuple[ToolParserName, ReasoningParserName]:
    """Return the parsers of calls and of reasoning for a model with this template; "none" for neither."""
    source = chat_template or ""
    tools = (
        name
        for name, row in CALLS.items()
        if _has(source, row.signs) and not any(other in source for other in row.others)
    )
    reasoning = (name for name, row in REASONING.items() if _has(source, row.signs))
    return next(tools, "none"), next(reasoning, "none")


def output_reader(
    tools: ToolParserName, reasoning: ReasoningParserName, functions: Functions | None, is_open: bool | None
) -> Read:
    """Return the reader of an output. `functions` None: calls are not read; `is_open`: it begins within reasoning."""
    whole = REASONING[reasoning].reader if reasoning != "none" else None
    if whole is None and tools != "none" and CALLS[tools].reads_reasoning:
        whole = tools
    if whole is not None:
        kind = "content" if reasoning == "none" else "reasoning"
        return partial(CALLS[whole].read, functions=functions if tools == whole else None, reasoning=kind)
    read: Read = content
    if tools != "none" and functions is not None:
        read = _calls_reader(CALLS[tools], functions)
    if reasoning == "none":
        return read
    thinking = REASONING[reasoning].thinking
    return partial(read_thinking, thinking=thinking, is_open=is_open, answer=read)


def _calls_reader(row: CallFormat, functions: Functions) -> Read:
    return lambda source: row.read(source, functions)


def _has(template: str, signs: Signs) -> bool:
    return any(all(text in template for text in sign) for sign in signs)


def read_thinking(source: Source, thinking: Thinking, is_open: bool | None, answer: Read) -> Reader[None]:
    """Read reasoning, if there is any, and the answer by `answer`."""
    lead = yield from source.blanks()
    if (yield from source.literal(thinking.opening)) or is_open:
        yield from source.until(thinking.closing, "reasoning")
        yield from source.blanks()
        if thinking.end and (yield from source.literal((thinking.answer,))):
            yield from source.until((f"\n{thinking.end}", thinking.end), "content")
            yield from source.blanks()
    else:
        yield Event("content", lead)
    yield from answer(source)
