"""Structured output from the outside: whatever is asked for is what comes; what cannot be followed is a 400."""

from __future__ import annotations

import json
import random
import re
import threading
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.serving import Server, running_server, write_checkpoint

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello!"}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", None]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def ask(client: openai.OpenAI, **options: Any) -> Any:
    given: Any = {"model": "fake", "messages": HELLO, "max_tokens": 200, **options}
    return client.chat.completions.create(**given)


def streamed(client: openai.OpenAI, **options: Any) -> str:
    return "".join(c.delta.content or "" for chunk in ask(client, stream=True, **options) for c in chunk.choices)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_json_of_a_schema_streamed_or_not(client: openai.OpenAI, temperature: float) -> None:
    for seed in range(4):
        options = {"response_format": form(PERSON), "temperature": temperature, "seed": seed}
        choice = ask(client, **options).choices[0]
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), PERSON)
        assert streamed(client, **options) == choice.message.content


def test_every_choice_of_a_hot_request_follows_the_schema(client: openai.OpenAI) -> None:
    choices = ask(client, response_format=form(PERSON), temperature=2.0, top_p=1.0, n=8, seed=11).choices
    assert len({choice.message.content for choice in choices}) > 1
    for choice in choices:
        jsonschema.validate(json.loads(choice.message.content), PERSON)


def test_a_json_object_of_any_kind(client: openai.OpenAI) -> None:
    for seed in range(4):
        choice = ask(client, response_format={"type": "json_object"}, temperature=1.2, seed=seed).choices[0]
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
        else:
            assert choice.message.content.startswith("{")


def test_the_length_leaves_json_incomplete_and_says_so(client: openai.OpenAI) -> None:
    choice = ask(client, response_format=form(PERSON), max_tokens=4).choices[0]
    assert choice.finish_reason == "length"
    with pytest.raises(ValueError):  # noqa: PT011
        json.loads(choice.message.content)


FIVE = {"type": "object", "properties": {"a": {"const": 5}}, "required": ["a"], "additionalProperties": False}
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object", "schema": FIVE}}, r'\{ ?"a" ?: ?5 ?\}'),
    ({"structured_outputs": {"regex": "[0-9]{3}-[0-9]{4}"}}, r"[0-9]{3}-[0-9]{4}"),
    ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
    ({"structured_outputs": {"json": {"type": "boolean"}}}, "true|false"),
    ({"structured_outputs": {"json": '{"const": 5}'}}, "5"),
    ({"structured_outputs": {"json_object": True}}, r"(?s)\{.*"),
    ({"structured_outputs": {"grammar": 'root ::= "x" num\nnum ::= [0-9] [0-9]'}}, "x[0-9]{2}"),
    ({"structured_outputs": {"grammar": 'start: "x" NUM\nNUM: /[0-9]{2}/'}}, "x[0-9]{2}"),
    ({"guided_json": {"type": "null"}}, "null"),
    ({"guided_regex": "(ab){2,3}"}, "(ab){2,3}"),
    ({"guided_choice": ["é", "\U0001f600"]}, "é|\U0001f600"),
    ({"guided_grammar": 'root ::= "yes" | "no"'}, "yes|no"),
]


@pytest.mark.parametrize(("extra", "pattern"), OTHERS, ids=lambda value: str(value)[:50])
@pytest.mark.parametrize("is_chat", [True, False], ids=["chat", "completions"])
def test_the_other_ways_to_ask(client: openai.OpenAI, extra: dict[str, Any], pattern: str, is_chat: bool) -> None:
    for seed in range(2):
        options: dict[str, Any] = {"temperature": 1.5, "seed": seed, "max_tokens": 60, "extra_body": extra}
        if is_chat:
            text = ask(client, **options).choices[0].message.content
        else:
            text = client.completions.create(model="fake", prompt="Hello", **options).choices[0].text
        assert re.fullmatch(pattern, text), text


def test_stop_strings_min_tokens_and_ignored_ends(client: openai.OpenAI) -> None:
    cut = ask(client, response_format=form(PERSON), stop='"age"').choices[0]
    assert cut.finish_reason == "stop"
    assert '"age"' not in cut.message.content
    longer = ask(client, extra_body={"guided_regex": "a+", "min_tokens": 20}, temperature=1, seed=1)
    assert longer.usage.completion_tokens >= 20
    filled = ask(client, max_tokens=12, extra_body={"guided_choice": ["yes"], "ignore_eos": True})
    assert (filled.choices[0].message.content, filled.usage.completion_tokens) == ("yes", 12)


def test_log_probabilities_are_among_what_is_allowed(client: openai.OpenAI) -> None:
    choice = ask(client, extra_body={"guided_regex": "[ab]"}, logprobs=True, top_logprobs=5).choices[0]
    first = choice.logprobs.content[0]
    allowed = [entry for entry in first.top_logprobs if entry.logprob > -9999]
    assert {entry.token for entry in allowed} == {"a", "b"}
    assert first.token in {"a", "b"}


def test_a_seed_gives_the_same_whoever_else_is_served(client: openai.OpenAI, real_server: Server) -> None:
    options = {"response_format": form(PERSON), "temperature": 1.3, "seed": 5}
    alone = ask(client, **options).choices[0].message.content
    free = {"messages": HELLO, "max_tokens": 60, "temperature": 1.3, "seed": 5, "ignore_eos": True}
    free_alone = httpx.post(real_server.url + CHAT, json=free, timeout=120).json()["choices"][0]["message"]
    answers: list[Any] = []

    def run(body: dict[str, Any]) -> None:
        answers.append(httpx.post(real_server.url + CHAT, json=body, timeout=120).json()["choices"][0]["message"])

    structured = {"messages": HELLO, "max_tokens": 200, **options}
    threads = [threading.Thread(target=run, args=(body,)) for body in (structured, free) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(answers) == 8
    assert {answer["content"] for answer in answers} == {alone, free_alone["content"]}


LEAVES = st.sampled_from(
    [
        {"type": "string", "maxLength": 12},
        {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}$"},
        {"type": "string", "format": "date"},
        {"type": "integer", "minimum": -9, "maximum": 9},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["x", 1, None, True]},
        {"const": {"k": [1]}},
    ]
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from("abcdé"), inner, min_size=1, max_size=3).map(
        lambda properties: {
            "type": "object",
            "properties": properties,
            "required": sorted(properties)[:2],
            "additionalProperties": False,
        }
    )


def arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(inner, st.integers(0, 2)).map(
        lambda pair: {"type": "array", "items": pair[0], "minItems": pair[1], "maxItems": 2}
    )


def unions(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options})


SCHEMAS = st.recursive(LEAVES, lambda inner: objects(inner) | arrays(inner) | unions(inner), max_leaves=5)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(schema=SCHEMAS, seed=st.integers(0, 2**31))
def test_whatever_the_schema_the_output_is_valid(client: openai.OpenAI, schema: Any, seed: int) -> None:
    temperature = random.Random(seed).choice((0.7, 1.5))
    choice = ask(client, response_format=form(schema), temperature=temperature, seed=seed, max_tokens=400).choices[0]
    if choice.finish_reason == "stop":
        jsonschema.validate(json.loads(choice.message.content), schema)


SCHEMA_FIELD = "response_format.json_schema.schema"
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, SCHEMA_FIELD, "required"),
    ({"response_format": form({"type": "objekt"})}, SCHEMA_FIELD, "objekt"),
    ({"response_format": form({"minItems": -1})}, SCHEMA_FIELD, "$.minItems (minimum)"),
    ({"response_format": form([])}, SCHEMA_FIELD, "object"),
    ({"response_format": form({"enum": ["x" * 140_000]})}, SCHEMA_FIELD, "131072"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", "exclude"),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "unclosed"),
    ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex", "string"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "1 item"),
    ({"structured_outputs": {"grammar": "start: a"}}, "structured_outputs.grammar", "unknown name"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "not supported"),
    ({"guided_json": "{"}, "guided_json", "not JSON"),
    ({"guided_regex": "(?!a)b"}, "guided_regex", "look-ahead"),
    ({"guided_choice": ["a"] * 2000}, "guided_choice", "1024"),
    ({"guided_grammar": "("}, "guided_grammar", "Lark"),
]


@pytest.mark.parametrize(("change", "param", "words"), BAD, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_what_cannot_be_followed_is_refused_by_field(
    real_server: Server, path: str, change: dict[str, Any], param: str, words: str
) -> None:
    body = {"messages": HELLO} if path == CHAT else {"prompt": "a"}
    response = httpx.post(real_server.url + path, json={**body, "max_tokens": 1, **change}, timeout=60)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert words in error["message"]


@pytest.mark.slow
def test_a_tokenizer_that_cannot_follow_grammars_is_named(tmp_path: Any) -> None:
    """A checkpoint without any end token serves text, and refuses what could not end."""
    checkpoint = write_checkpoint(tmp_path / "model")
    for name in ("tokenizer_config.json", "generation_config.json", "config.json"):
        content = json.loads((checkpoint / name).read_text())
        for key in ("eos_token", "eos_token_id"):
            content.pop(key, None)
        (checkpoint / name).write_text(json.dumps(content))
    with running_server(checkpoint) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        assert http.post(TEXT, json={"prompt": "a", "max_tokens": 1}).status_code == 200
        response = http.post(TEXT, json={"prompt": "a", "max_tokens": 1, "guided_regex": "a"})
    assert response.status_code == 400
    assert "no end token" in response.json()["error"]["message"]
