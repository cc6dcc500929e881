"""Grammars of outputs: their text in llguidance's form, and their compilation under fixed limits.

A grammar is passed on as text (`SamplingParams.grammar`) and compiled where it is used. Limits are the same in every
process, so the engine accepts every grammar that the API has accepted.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from

from ..errors import CheckpointError
from .generation_config import load_generation_defaults
from .tokenizer import load_tokenizer

Kind = Literal["json", "regex", "choice", "grammar", "lark"]
MAX_GRAMMAR_CHARS = 128 * 2**10  # of a grammar's text; the library needs about half a second for the largest
MAX_REASON_CHARS = 300
# JSON on one line, with at most one space between tokens: small models tend to write endless blanks if they may.
WHITESPACE = " ?"
OPTIONS = "x-guidance"  # key of a schema with the library's options
# A matcher's lexer keeps 1 to 2 kB for each state.
LIMITS = LLParserLimits(max_lexer_states=20_000, verbose_errors=False)

_PLACE = re.compile(r"^(at \d+\(\d+\): )?(failed to compile JSON schema: )?")


class GrammarError(Exception):
    """The grammar cannot be used; `str()` is one line, fit to be shown to a user."""


def json_schema(schema: Any) -> str:
    """Return JSON text of a schema (an object or JSON text) with this server's options. Raises GrammarError."""
    schema = schema_object(schema)
    try:
        options = {**schema.get(OPTIONS, {}), "whitespace_pattern": WHITESPACE}
        text = json.dumps({**schema, OPTIONS: options}, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is not JSON: {_line(error)}") from error
    return text


def grammar_text(kind: Kind, spec: Any, before: str = "") -> str:
    """Return a grammar in llguidance's form. `kind` names the form of `spec`; "grammar" is GBNF or Lark.

    `before` has rules in Lark whose rule `before` precedes the grammar. Raises GrammarError when a grammar cannot be
    converted, or is larger than MAX_GRAMMAR_CHARS.
    """
    text = _converted(kind, spec)
    return bounded(_after(before, text) if before else text)


def _after(before: str, text: str) -> str:
    """Return the grammar `text` behind the rule `before`."""
    inner = json.loads(text)["grammars"] if text.startswith("{") else [{"lark_grammar": text}]
    inner[0]["name"] = "answer"
    return json.dumps({"grammars": [{"lark_grammar": f"start: before @answer\n{before}"}, *inner]})


def _converted(kind: Kind, spec: Any) -> str:
    if kind == "json":
        text = LLMatcher.grammar_from_json_schema(json_schema(spec))
    elif kind == "choice":
        text = LLMatcher.grammar_from_lark("start: " + " | ".join(map(quoted, spec)))
    elif kind == "regex":
        text = LLMatcher.grammar_from_regex(bounded(spec))
    elif kind == "lark":
        text = LLMatcher.grammar_from_lark(bounded(spec))
    else:
        try:
            text = grammar_from("grammar", bounded(spec))
        except (ValueError, RecursionError) as error:
            raise GrammarError(_line(error)) from error
    return str(text)


def quoted(text: str) -> str:
    """Return `text` as a string literal of Lark, whose form is JSON's."""
    return json.dumps(text)


def load_grammar_tokenizer(tokenizer_path: Path, model_path: Path) -> LLTokenizer:
    """Return llguidance's form of the tokenizer. Takes up to a second for large vocabularies. Raises GrammarError."""
    try:
        tokenizer = load_tokenizer(tokenizer_path)
        ends = load_generation_defaults(model_path, tokenizer).eos_token_ids
        if not ends:
            raise GrammarError("this model has no end token, so a structured output could not end")
        return LLTokenizer(tokenizer.to_json(), n_vocab=tokenizer.vocab_size, eos_token=list(ends))
    except (CheckpointError, ValueError) as error:
        raise GrammarError(f"this model's tokenizer cannot be used for structured output: {_line(error)}") from error


def compile_grammar(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    """Return a matcher at the output's beginning. Raises GrammarError when `text` is no grammar, or allows nothing."""
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise GrammarError(reason(matcher))
    return matcher


def reason(matcher: LLMatcher) -> str:
    """Return the cause of a matcher's error state, in one line."""
    text = matcher.get_error() or "the output has left it"
    return "it allows no text at all" if text.startswith("NoExtension") else _line(text)


def schema_object(schema: Any) -> dict[str, Any]:
    """Return a schema (an object, JSON text of one, or true) as an object. Raises GrammarError for anything else."""
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(bounded(schema))
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"the schema is not JSON: {_line(error)}") from error
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise GrammarError(f"a JSON schema is an object, not {'null' if schema is None else type(schema).__name__}")
    return schema


def bounded(text: str) -> str:
    """Return `text`. Raises GrammarError when it is longer than a grammar may be."""
    if len(text) > MAX_GRAMMAR_CHARS:
        raise GrammarError(f"it has {len(text)} characters, more than the limit of {MAX_GRAMMAR_CHARS}")
    return text


def _line(error: object) -> str:
    """Return the error in one line, without its position in generated text that the user has not seen."""
    lines = [line.strip() for line in str(error).splitlines()] or [type(error).__name__]
    faults = [line for line in lines if line.startswith("error: ")]  # after the regex and a marker line
    text = f"regex parse {faults[0]}" if faults else _PLACE.sub("", lines[0])
    return text if len(text) <= MAX_REASON_CHARS else text[:MAX_REASON_CHARS] + "..."
