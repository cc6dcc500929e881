"""Grammars of calls: whatever they let through is read as calls that follow the schemas."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, get_args

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from neuronserve.server.text.grammar import GrammarError, compile_grammar, grammar_text, json_schema
from neuronserve.server.text.parsers.call_formats import CALLS, ToolParserName
from neuronserve.server.text.parsers.formats import REASONING, ReasoningParserName, output_reader
from neuronserve.server.text.parsers.lark import Function, Lead, Marks, budget_rules, call_rules, lead, text_rule
from neuronserve.server.text.parsers.output import OutputParser
from neuronserve.server.text.parsers.property_rules import is_held
from neuronserve.server.text.parsers.shapes import Arguments
from neuronserve.server.text.tokenizer import Tokenizer

END = "<|eos|>"
TAGS = sorted({tag for row in (*CALLS.values(), *REASONING.values()) for tag in row.tags if " " not in tag})
FULL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "exact": {"type": "boolean"},
        "spot": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        "near": {"anyOf": [{"type": "string", "enum": ["yes"]}, {"type": "null"}]},
    },
    "required": ["unit", "days"],
    "additionalProperties": False,
}
NONE: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
OPTIONAL = {**FULL, "required": []}
FUNCTIONS = [Function("plan_trip", FULL), Function("stop", NONE), Function("look.up-2", OPTIONAL)]
SCHEMAS = {function.name: function.schema for function in FUNCTIONS}


def tokenizer(tags: Sequence[str]) -> tuple[Tokenizer, LLTokenizer]:
    """One id a byte, and one for each of `tags`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END])
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    made = Tokenizer(backend, {"eos_token": END})
    return made, LLTokenizer(made.to_json(), n_vocab=made.vocab_size, eos_token=[made.eos_token_id or 0])


NO_LEAD = Lead()
WITH_TAGS, WITHOUT = tokenizer(TAGS), tokenizer(())
PRINTABLE = frozenset(range(0x20, 0x7F))


FORMS = get_args(Arguments)


def allowed(matcher: LLMatcher, size: int) -> list[int]:
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")[:size]
    return [int(i) for i in np.flatnonzero(bits)]


def write(made: tuple[Tokenizer, LLTokenizer], grammar: str, rng: random.Random, most: int = 1500) -> str | None:
    """A random text of the grammar, which likes to end; None when it did not within `most` tokens."""
    words, follower = made
    matcher = compile_grammar(follower, grammar)
    ids: list[int] = []
    for _ in range(most):
        if matcher.is_accepting() and rng.random() < 0.5:
            return words.decode(ids, skip_special_tokens=False)
        choices = [i for i in allowed(matcher, words.vocab_size) if i != words.eos_token_id]
        if not choices:
            return words.decode(ids, skip_special_tokens=False)
        # Brackets, quotes and marks end things; other bytes should be readable.
        ends = [i for i in choices if words.token_text(i) in ('"', "}", "]", ")", "<", "\n", ",") or i > 256]
        plain = [i for i in choices if words.token_bytes(i)[0] in PRINTABLE] or choices
        ids.append(rng.choice(ends if ends and rng.random() < 0.4 else plain))
        assert matcher.consume_token(ids[-1]), matcher.get_error()
    return None


def calls_of(name: ToolParserName, reasoning: ReasoningParserName, text: str) -> tuple[str, str, list[list[str]]]:
    parser = OutputParser(output_reader(name, reasoning, SCHEMAS, None))
    first, last = parser.feed(text), parser.finish()
    calls: list[list[str]] = []
    for part in first.calls + last.calls:
        if part.name is not None:
            calls.append([part.name, ""])
        calls[part.index][1] += part.arguments
    return first.content + last.content, first.reasoning + last.reasoning, calls


def forced(
    name: ToolParserName, made: tuple[Tokenizer, LLTokenizer], before: Lead = NO_LEAD, parallel: bool = True
) -> str:
    row = CALLS[name]
    rules = call_rules(row.shape, Marks(row.tags, made[0].token_id), FUNCTIONS, parallel)
    return grammar_text("lark", "\n".join(["start: calls", *rules]), before.before_calls())


@pytest.mark.slow
@pytest.mark.parametrize("has_tags", [True, False], ids=["marks are tokens", "marks are text"])
@pytest.mark.parametrize("name", CALLS)
def test_calls_that_must_come_are_read_and_follow_their_schemas(name: ToolParserName, has_tags: bool) -> None:
    made, seen = WITH_TAGS if has_tags else WITHOUT, set()
    grammar = forced(name, made)
    for seed in range(40):
        text = write(made, grammar, random.Random(seed))
        if text is None:
            continue
        content, _, calls = calls_of(name, "none", text)
        assert content == "", text
        assert calls, text
        for function, arguments in calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[function])
            seen.add(function)
    assert len(seen) > 1


@pytest.mark.parametrize("name", CALLS)
def test_without_parallel_calls_there_is_one(name: ToolParserName) -> None:
    grammar = forced(name, WITH_TAGS, parallel=False)
    for seed in range(15):
        text = write(WITH_TAGS, grammar, random.Random(seed))
        assert text is None or len(calls_of(name, "none", text)[2]) == 1, text


@pytest.mark.parametrize(
    ("name", "reasoning"),
    [("hermes", "qwen3"), ("openai", "openai_gptoss"), ("mistral", "mistral"), ("granite", "granite")],
)
def test_reasoning_may_come_before_a_call_that_must(name: ToolParserName, reasoning: ReasoningParserName) -> None:
    thinking = REASONING[reasoning].thinking
    marks = Marks((*CALLS[name].tags, *REASONING[reasoning].tags), WITH_TAGS[0].token_id)
    grammar = forced(name, WITH_TAGS, lead(thinking, marks, None, None))
    words, follower = WITH_TAGS
    for thought in ("", thinking.opening[0] + "Let me see, é." + thinking.closing[0] + thinking.resume):
        matcher = compile_grammar(follower, grammar)
        shape = CALLS[name].shape
        head = shape.opening + shape.head.replace("NAME", "stop")
        text = thought + head + ("{}" if shape.arguments == "json" else "") + shape.tail + shape.closing
        assert consumed(matcher, words.encode(text, False)), text
        assert matcher.is_accepting()
        content, said, calls = calls_of(name, reasoning, text)
        assert (content, bool(said), calls) == ("", bool(thought), [["stop", "{}"]])


def consumed(matcher: LLMatcher, ids: list[int]) -> bool:
    return bool(matcher.try_consume_tokens(ids) == len(ids))


@pytest.mark.parametrize("reasoning", [name for name in REASONING if name != "granite"])
@pytest.mark.parametrize("is_open", [True, None])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_budget_ends_the_reasoning(reasoning: ReasoningParserName, is_open: bool | None, budget: int) -> None:
    thinking = REASONING[reasoning].thinking
    words, follower = WITH_TAGS
    marks = Marks(REASONING[reasoning].tags, words.token_id)
    grammar = grammar_text("lark", "\n".join(budget_rules(thinking, marks, is_open, budget)))
    opening = [] if is_open else words.encode(thinking.opening[0], False)
    (closing,) = words.encode(thinking.closing[0], False)
    for length in range(budget + 1):
        matcher = compile_grammar(follower, grammar)
        assert consumed(matcher, [*opening, *words.encode("x" * length, False)])
        if length == budget:
            assert allowed(matcher, words.vocab_size) == [closing]
        rest = words.encode(thinking.closing[0] + "any" + thinking.closing[0] + TAGS[0] + thinking.opening[0], False)
        assert consumed(matcher, rest)
    if not is_open:
        matcher = compile_grammar(follower, grammar)
        other = thinking.others[0] if thinking.others else "Yes"
        assert consumed(matcher, words.encode(other + "x" * 20 + thinking.opening[0] + "x" * 20, False))


def test_a_budget_goes_before_every_kind_of_format() -> None:
    thinking, (words, follower) = REASONING["qwen3"].thinking, WITH_TAGS
    marks = Marks(REASONING["qwen3"].tags, words.token_id)
    before = lead(thinking, marks, True, 3).before_answer()
    formats: list[tuple[Any, Any, str, str]] = [
        ("json", {"type": "integer"}, "12", "a"),
        ("regex", "[0-9]+", "12", "a"),
        ("choice", ["yes", "no"], "no", "12"),
        ("grammar", 'root ::= "a" | "b"', "b", "c"),
        ("lark", 'start: "a" B\nB: /b/', "ab", "b"),
    ]
    for kind, spec, good, bad in formats:
        grammar = grammar_text(kind, spec, before)
        for gap in ("", "\n", "\n\n"):
            assert consumed(compile_grammar(follower, grammar), words.encode("abc</think>" + gap + good, False)), kind
        assert consumed(compile_grammar(follower, grammar), words.encode("</think>" + good, False))
        assert not consumed(compile_grammar(follower, grammar), words.encode("abcd", False))
        assert not consumed(compile_grammar(follower, grammar), words.encode("abc</think>" + bad, False))


@pytest.mark.parametrize("name", CALLS)
def test_text_beside_calls_is_free(name: ToolParserName) -> None:
    row, (words, follower) = CALLS[name], WITH_TAGS
    marks = Marks(row.tags, words.token_id)
    text = text_rule(row.shape, marks)
    if text is None:
        assert marks.first(row.shape.opening + row.shape.head) is None
        return
    rules = call_rules(row.shape, marks, FUNCTIONS, True)
    start = "start: calls | text" if row.shape.lead else "start: text (calls text)*"
    grammar = grammar_text("lark", "\n".join([start, text, *rules]))
    for free in ("", "Hello.", "\n é [1] {2} <b>"):
        assert consumed(compile_grammar(follower, grammar), words.encode(free, False)), free
    broken = row.shape.opening + row.shape.head.replace("NAME", "nobody")
    assert not consumed(compile_grammar(follower, grammar), words.encode(broken, False))


def test_what_a_form_cannot_hold_is_named() -> None:
    def rules(name: ToolParserName, schema: dict[str, Any]) -> list[str]:
        marks = Marks(CALLS[name].tags, WITH_TAGS[0].token_id)
        return call_rules(CALLS[name].shape, marks, [Function("f", {"type": "object", **schema})], True)

    unnamed: list[tuple[ToolParserName, str]] = [("llama4_pythonic", "a b"), ("gemma", "a b"), ("qwen3_coder", "a>b")]
    for form, key in unnamed:
        with pytest.raises(GrammarError, match=key):
            rules(form, {"properties": {key: {}}})
    assert rules("hermes", {"properties": {"a b": {}, "a>b": {}}})
    assert rules("qwen3_coder", {"properties": {"a b": {}}})
    with pytest.raises(GrammarError, match="no token"):
        budget_rules(REASONING["qwen3"].thinking, Marks(("<think>", "</think>"), WITHOUT[0].token_id), None, 4)


HELD: list[tuple[dict[str, Any], list[str]]] = [  # a schema, and the forms whose rules keep to all of it
    ({"properties": {"a": {"type": "integer", "minimum": 2}}}, ["json", "keywords", "quoted", "parameters"]),
    ({"properties": {"a": {"type": "string", "pattern": "x"}}}, ["json", "keywords"]),
    ({"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}}, [*FORMS]),
    ({"additionalProperties": {"type": "integer"}}, ["json"]),
    ({"required": ["a"], "additionalProperties": {"type": "integer"}}, ["json"]),
    ({"properties": {"a": False}}, ["json"]),
    ({"anyOf": [{}]}, ["json"]),
    ({"minProperties": 1}, ["json"]),
    ({}, [*FORMS]),
]


@pytest.mark.parametrize(("schema", "forms"), HELD, ids=str)
def test_arguments_are_checked_where_the_rules_leave_something_out(schema: dict[str, Any], forms: list[str]) -> None:
    assert [form for form in FORMS if is_held(form, {"type": "object", **schema})] == forms


def test_references_to_any_place_of_the_schema_hold_in_every_form() -> None:
    tree = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "m": {"$ref": "#/properties/n"}, "more": {"$ref": "#/$defs/more"}},
        "$defs": {"more": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
        "required": ["m", "more"],
        "additionalProperties": False,
    }
    for name, row in CALLS.items():
        marks = Marks(row.tags, WITH_TAGS[0].token_id)
        rules = call_rules(row.shape, marks, [Function("f", tree)], False)
        grammar = grammar_text("lark", "\n".join(["start: calls", *rules]))
        texts = [write(WITH_TAGS, grammar, random.Random(seed)) for seed in range(8)]
        for text in filter(None, texts):
            parser = OutputParser(output_reader(name, "none", {"f": tree}, None))
            parts = parser.feed(text).calls + parser.finish().calls
            jsonschema.validate(json.loads("".join(part.arguments for part in parts)), tree)


@pytest.mark.slow
def test_references_and_free_arguments_hold_in_every_form() -> None:
    shared = {"$defs": {"n": {"type": "integer"}}, "type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}
    named = {**shared, "properties": {"n": {"$ref": "#/$defs/n"}, "s": {"type": "string"}}, "required": ["n", "s"]}
    for name, row in CALLS.items():
        marks = Marks(row.tags, WITH_TAGS[0].token_id)
        for schema in (named, {"type": "object"}):
            rules = call_rules(row.shape, marks, [Function("f", schema)], False)
            grammar = grammar_text("lark", "\n".join(["start: calls", *rules]))
            for seed in range(8):
                text = write(WITH_TAGS, grammar, random.Random(seed))
                if text is not None:
                    parser = OutputParser(output_reader(name, "none", {"f": schema}, None))
                    parts = parser.feed(text).calls + parser.finish().calls
                    jsonschema.validate(json.loads("".join(part.arguments for part in parts)), schema)


def test_an_answer_in_json_or_calls() -> None:
    row, (words, follower) = CALLS["openai"], WITH_TAGS
    thinking = REASONING["openai_gptoss"].thinking
    marks = Marks(row.tags, words.token_id)
    before = lead(thinking, marks, None, None)
    rules = ["start: calls | answer", f"answer: {before.answer} %json {json_schema({'type': 'integer'})}"]
    rules += call_rules(row.shape, marks, FUNCTIONS, True)
    grammar = grammar_text("lark", "\n".join(rules), before.before_calls())
    thought = "<|channel|>analysis<|message|>x<|end|><|start|>assistant"
    for text in (
        "<|channel|>final<|message|>12",
        "<|channel|>commentary to=functions.stop <|constrain|>json<|message|>{}",
    ):
        for head in ("", thought):
            assert consumed(compile_grammar(follower, grammar), words.encode(head + text, False)), text
    assert not consumed(compile_grammar(follower, grammar), words.encode("12", False))
