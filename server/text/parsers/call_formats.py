"""Formats in which model families write calls: a row each, found by its name or by the chat template.

A new family is a reader in its own file, or a record of marks for one that is there, and a row here. The row's shape
also gives the grammar of forced calls (`lark.py`). Its signs are texts in the family's published chat templates that no
template of an earlier row has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from . import harmony, json_calls, named_calls, pythonic, tagged
from .shapes import CallShape, ParameterShape
from .source import Reader

ToolParserName = Literal[
    "openai",
    "deepseek_v32",
    "deepseek_v3",
    "deepseek_v31",
    "kimi_k2",
    "gemma4",
    "lfm2",
    "glm47",
    "glm45",
    "minimax_m2",
    "seed_oss",
    "qwen3_coder",
    "nemotron_json",
    "hunyuan_a13b",
    "olmo3",
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


_OBJECT = '{"name": "NAME", "arguments": ', "}"


def _tokens(tags: tagged.Tags, *more: str) -> tuple[str, ...]:
    return (*tags.opening, *tags.closing, *more)


def _tagged(head: str, tail: str, parameter: str, end: str, between: str = "\n") -> CallShape:
    return CallShape(head, tail, between, arguments="parameters", parameter=ParameterShape(parameter, end))


def _block(tags: tagged.Tags, parameter: str) -> CallShape:
    """Return the shape of calls that stand in one block."""
    head, tail = f"{tags.function}NAME{tags.name_end}\n", f"{tags.function_end}\n"
    value = ParameterShape(parameter, f"{tags.value_end}\n")
    return CallShape(head, tail, "", f"{tags.opening[0]}\n", tags.closing[0], "parameters", value)


def _named(marks: named_calls.Marks, head: str, tail: str, sign: str) -> CallFormat:
    shape = CallShape(marks.begin + head, tail, "", marks.opening, marks.closing)
    return CallFormat(partial(named_calls.read_named, marks=marks), marks.tags, shape, ((marks.begin, sign),))


def _arrays(marks: tuple[str, str], *signs: tuple[str, ...]) -> CallFormat:
    opening, closing = marks
    read = partial(json_calls.read_arrays, opening=(opening,), closing=closing)
    return CallFormat(read, marks, CallShape(*_OBJECT, ", ", f"{opening}[", f"]{closing}"), signs)


CALLS: dict[ToolParserName, CallFormat] = {
    "openai": CallFormat(
        harmony.read_harmony,
        harmony.TAGS,
        CallShape("<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>", "", None),
        (("<|channel|>", "commentary"),),
        reads_reasoning=True,
    ),
    "deepseek_v32": CallFormat(
        partial(tagged.read_tagged, tags=tagged.DSML),
        ("｜DSML｜",),
        _block(tagged.DSML, '<｜DSML｜parameter name="KEY" string="IS_TEXT">'),
        (("｜DSML｜", "parameter name="),),
    ),
    "deepseek_v3": _named(
        named_calls.DEEPSEEK, "function<｜tool▁sep｜>NAME\n```json\n", "\n```<｜tool▁call▁end｜>", "```json"
    ),
    "deepseek_v31": _named(named_calls.DEEPSEEK, "NAME<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"),
    "kimi_k2": _named(
        named_calls.KIMI, "functions.NAME:0<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_call_begin|>"
    ),
    "gemma4": CallFormat(
        pythonic.read_gemma4,
        pythonic.GEMMA4,
        CallShape(
            "<|tool_call>call:NAME{",
            "}<tool_call|>",
            "",
            arguments="quoted",
            parameter=ParameterShape("KEY:", between=",", quote=pythonic.QUOTE),
        ),
        (("<|tool_call>call:",),),
    ),
    "lfm2": CallFormat(
        partial(pythonic.read_marked, marks=pythonic.LFM2),
        pythonic.LFM2,
        CallShape("NAME(", ")", ", ", "<|tool_call_start|>[", "]<|tool_call_end|>", "keywords"),
        (("<|tool_call_start|>",), ("<|tool_list_start|>",), ("List of tools: [",)),
    ),
    "glm47": CallFormat(
        partial(tagged.read_tagged, tags=tagged.GLM),
        _tokens(tagged.GLM, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        _tagged("<tool_call>NAME", "</tool_call>", "<arg_key>KEY</arg_key><arg_value>", "</arg_value>", between=""),
        (("</arg_key><arg_value>",),),
    ),
    "glm45": CallFormat(
        partial(tagged.read_tagged, tags=tagged.GLM),
        _tokens(tagged.GLM, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        _tagged("<tool_call>NAME\n", "</tool_call>", "<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>\n"),
        (("<arg_key>",),),
    ),
    "minimax_m2": CallFormat(
        partial(tagged.read_tagged, tags=tagged.MINIMAX),
        _tokens(tagged.MINIMAX),
        _block(tagged.MINIMAX, '<parameter name="KEY">'),
        (("<minimax:tool_call>", "<invoke"),),
    ),
    "seed_oss": CallFormat(
        partial(tagged.read_tagged, tags=tagged.SEED),
        _tokens(tagged.SEED),
        _tagged(
            "<seed:tool_call>\n<function=NAME>\n",
            "</function>\n</seed:tool_call>",
            "<parameter=KEY>",
            "</parameter>\n",
        ),
        (("<seed:tool_call>",),),
    ),
    "qwen3_coder": CallFormat(
        partial(tagged.read_tagged, tags=tagged.QWEN),
        _tokens(tagged.QWEN),
        _tagged("<tool_call>\n<function=NAME>\n", "</function>\n</tool_call>", "<parameter=KEY>\n", "\n</parameter>\n"),
        (("<function=", "<parameter="),),
    ),
    "nemotron_json": _arrays(json_calls.NEMOTRON, ("<TOOLCALL>",)),
    "hunyuan_a13b": _arrays(json_calls.HUNYUAN, ("<tool_calls>[",), ("<tool_calls>", "<answer>")),
    "olmo3": CallFormat(
        partial(pythonic.read_marked, marks=pythonic.OLMO),
        (),
        CallShape("NAME(", ")", "\n", "<function_calls>", "</function_calls>", "keywords"),
        (("<function_calls>",),),
    ),
    "granite": CallFormat(
        partial(json_calls.read_arrays, opening=json_calls.GRANITE, closing="</tool_call>"),
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
        others=("<invoke", "list of json objects"),
    ),
}
