"""Formats in which model families write calls and reasoning: a row each, found by its name or by the chat template.

A new family is a reader in its own file and a row here. The row's shape also gives the grammar of forced calls
(`lark.py`). Its signs are texts in the family's published chat templates that no template of an earlier row has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from . import harmony, json_calls, pythonic, qwen3_coder
from .shapes import CallShape, Thinking
from .source import (
    Event,
    Functions,
    Read,
    Reader,
    Source,
    blanks,
    content,
    literal,
    until,
)

ToolParserName = Literal[
    "openai",
    "qwen3_coder",
    "granite",
    "phi4_mini_json",
    "mistral",
    "mistral_array",
    "llama3_json",
    "llama4_pythonic",
    "gemma",
    "hermes",
    "none",
]
ReasoningParserName = Literal["openai_gptoss", "granite", "granite_3_3", "mistral", "qwen3", "deepseek_r1", "none"]
Signs = tuple[tuple[str, ...], ...]  # alternatives; one matches if a template has all its texts


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How calls are read and written."""

    read: Callable[..., Reader[None]]  # takes a source and the functions
    tags: tuple[str, ...]  # marks that are tokens in vocabularies
    shape: CallShape
    signs: Signs
    reads_reasoning: bool = False  # the reader also reads reasoning; it takes the kind of those events as `reasoning`
    others: tuple[str, ...] = ()  # signs of other forms with the same marks


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How reasoning is written. `reader` names the format of calls whose reader also reads the reasoning."""

    thinking: Thinking
    signs: Signs
    reader: ToolParserName | None = None

    @property
    def tags(self) -> tuple[str, ...]:
        """Marks that are tokens in vocabularies."""
        return CALLS[self.reader].tags if self.reader else self.thinking.opening + self.thinking.closing


_OBJECT = '{"name": "NAME", "arguments": ', "}"
CALLS: dict[ToolParserName, CallFormat] = {
    "openai": CallFormat(
        harmony.read_harmony,
        harmony.TAGS,
        CallShape("<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>", "", None),
        (("<|channel|>", "commentary"),),
        reads_reasoning=True,
    ),
    "qwen3_coder": CallFormat(
        qwen3_coder.read_qwen3_coder,
        qwen3_coder.TAGS,
        CallShape("<tool_call>\n<function=NAME>\n", "</function>\n</tool_call>", arguments="parameters"),
        (("<function=", "<parameter="),),
        others=("<seed:tool_call>",),
    ),
    "granite": CallFormat(
        json_calls.read_granite,
        json_calls.GRANITE,
        CallShape(*_OBJECT, ", ", "<|tool_call|>[", "]"),
        (("<|tool_call|>", "<|start_of_role|>"),),
    ),
    "phi4_mini_json": CallFormat(
        json_calls.read_phi,
        json_calls.PHI,
        CallShape(*_OBJECT, ", ", "functools[", "]"),
        (("functools[",), ("<|tool|>", "<|/tool|>")),
    ),
    "mistral": CallFormat(
        json_calls.read_mistral,
        json_calls.MISTRAL,
        CallShape("[TOOL_CALLS]NAME[ARGS]", "", ""),
        (("[TOOL_CALLS]", "[ARGS]"),),
    ),
    "mistral_array": CallFormat(
        json_calls.read_mistral,
        json_calls.MISTRAL,
        CallShape(*_OBJECT, ", ", "[TOOL_CALLS] [", "]"),
        (("[TOOL_CALLS]",),),
    ),
    "llama3_json": CallFormat(
        json_calls.read_llama,
        json_calls.LLAMA,
        CallShape('{"name": "NAME", "parameters": ', "}", "; ", lead="{"),
        (('"parameters": dictionary of argument',),),
    ),
    "llama4_pythonic": CallFormat(
        pythonic.read_pythonic,
        pythonic.LLAMA,
        CallShape("NAME(", ")", ", ", "[", "]", "keywords", lead="["),
        (("[func_name1(",), ("<|python_start|>",)),
    ),
    "gemma": CallFormat(
        pythonic.read_gemma,
        (),
        CallShape("NAME(", ")", "\n", "```tool_code\n", "\n```", "keywords"),
        (("tool_code",),),
    ),
    "hermes": CallFormat(
        json_calls.read_hermes,
        json_calls.HERMES,
        CallShape('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>"),
        (("<tool_call>",),),
        others=("<arg_key>", "<invoke", "list of json objects"),
    ),
}
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
    "mistral": ReasoningFormat(Thinking(("[THINK]",), ("[/THINK]",)), (("[THINK]",),)),
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
    lead = yield from blanks(source)
    if (yield from literal(source, thinking.opening)) or is_open:
        yield from until(source, thinking.closing, "reasoning")
        yield from blanks(source)
        if thinking.end and (yield from literal(source, (thinking.answer,))):
            yield from until(source, (thinking.end,), "content")
    else:
        yield Event("content", lead)
    yield from answer(source)
