"""Schemas of pydantic, of Zod and of every keyword: none is refused, and what does not follow its schema says so."""

from __future__ import annotations

import itertools
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

import anthropic
import httpx
import jsonschema
import openai
import pytest
import regex
from pydantic import BaseModel, Field

from tests.api.bad_requests import CHAT
from tests.api.library_schemas import Colour, library_schemas
from tests.api.schemas import Schema, obj, whole
from tests.api.serving import Server

SCHEMAS = library_schemas()
DIGITS: Schema = {"type": "array", "items": whole(0, 9), "minItems": 2, "maxItems": 2, "uniqueItems": True}
NEVER: Schema = {"type": "boolean", "not": {"type": "boolean"}}
WRONG = "does not follow the schema: $ (not)"
AT_ONCE = 8


def pattern(_validator: Any, given: str, value: Any, _schema: Any) -> Any:
    """The keyword by a library that reads JavaScript's classes; a pattern that is none is an annotation."""
    try:
        is_found = not isinstance(value, str) or regex.search(given, value)
    except regex.error:
        return
    if not is_found:
        yield jsonschema.ValidationError(f"{value!r} does not match {given!r}")


def is_valid(name: str, schema: Schema, text: str) -> bool:
    """Validate by the package's reading of the schema's draft; OpenAPI 3.0 and draft 4 write bounds alike."""
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    if "openapi" in name.lower() or "draft 4" in name:
        kind = jsonschema.Draft4Validator
    elif isinstance(schema.get("items"), list) or "dependencies" in schema:
        kind = jsonschema.Draft7Validator
    return bool(jsonschema.validators.extend(kind, {"pattern": pattern})(schema).is_valid(json.loads(text)))


def form(schema: Schema, name: str = "answer") -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}


def body(schema: Schema, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello!"}]
    return {"messages": messages, "response_format": form(schema), "max_tokens": 300, "temperature": 1, **more}


def answer(http: httpx.Client, request: dict[str, Any]) -> tuple[str, str, str | None]:
    """Text, reason of the end and refusal of one answer, streamed or not."""
    response = http.post(CHAT, json=request)
    assert response.status_code == 200, response.text
    if not request.get("stream"):
        (choice,) = response.json()["choices"]
        return choice["message"]["content"], choice["finish_reason"], choice["message"]["refusal"]
    choices = [json.loads(line[6:])["choices"][0] for line in response.text.splitlines() if line.startswith("data: {")]
    refusals = [choice["delta"].get("refusal") for choice in choices]
    assert not any(refusals[:-1])
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, choices[-1]["finish_reason"], refusals[-1]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_no_schema_of_a_library_is_refused_and_a_fault_is_named(real_server: Server, stream: bool) -> None:
    with httpx.Client(base_url=real_server.url, timeout=120) as http, ThreadPoolExecutor(AT_ONCE) as pool:
        made = list(pool.map(lambda schema: answer(http, body(schema, seed=3, stream=stream)), SCHEMAS.values()))
    ended = {name: each for name, each in zip(SCHEMAS, made, strict=True) if each[1] == "stop"}
    assert len(ended) > 0.8 * len(SCHEMAS)
    silent = [name for name, each in ended.items() if is_valid(name, SCHEMAS[name], each[0]) == bool(each[2])]
    assert not silent, [(name, ended[name]) for name in silent]
    faults = [name for name, each in ended.items() if each[2]]
    assert len(faults) < len(ended) / 10, faults


@pytest.mark.parametrize("temperature", [0, 1])
def test_another_attempt_is_made_within_the_budget_and_is_the_same_for_a_seed(
    real_server: Server, temperature: float
) -> None:
    with httpx.Client(base_url=real_server.url, timeout=120) as http:
        request = body(DIGITS, temperature=temperature)
        streamed = [answer(http, request | {"seed": seed, "stream": True}) for seed in range(12)]
        whole = [http.post(CHAT, json=request | {"seed": seed, "n": 2}).json() for seed in range(12)]
        again = http.post(CHAT, json=request | {"seed": 3, "n": 2}).json()
    assert any(refusal for *_, refusal in streamed), "each first attempt is right: this tests nothing"
    right = [choice["message"]["refusal"] is None for each in whole for choice in each["choices"]]
    assert sum(right) > len(right) * 0.75
    assert any(each["usage"]["completion_tokens"] > 20 for each in whole)  # an attempt takes 7 tokens or so
    assert all(each["usage"]["completion_tokens"] <= 600 for each in whole)
    assert [choice["message"] for choice in again["choices"]] == [choice["message"] for choice in whole[3]["choices"]]


def test_a_budget_that_is_used_up_ends_the_attempts(real_server: Server) -> None:
    with httpx.Client(base_url=real_server.url, timeout=120) as http:
        for most in (2, 3, 9):
            got = http.post(CHAT, json=body(NEVER, max_tokens=most)).json()
            assert got["usage"]["completion_tokens"] <= most
            (choice,) = got["choices"]
            assert (choice["finish_reason"] == "stop") == (WRONG in (choice["message"]["refusal"] or ""))


def test_every_dialect_names_the_fault_in_its_own_shape(client: openai.OpenAI, real_server: Server) -> None:
    hello: Any = [{"role": "user", "content": "Hello!"}]
    for stream in (False, True):
        made: Any = client.responses.create(
            model="fake",
            input=hello,
            text={"format": {"type": "json_schema", "name": "a", "schema": NEVER, "strict": True}},
            max_output_tokens=60,
            stream=stream,
        )
        events = list(made) if stream else []
        response = events[-1].response if stream else made
        assert response.status == "completed"
        text, refusal = (item.content[0] for item in response.output)
        assert (text.type, refusal.type) == ("output_text", "refusal")
        assert WRONG in refusal.refusal
        kinds = [event.type for event in events]
        assert not stream or ("response.refusal.delta" in kinds and "response.refusal.done" in kinds)
    with anthropic.Anthropic(base_url=real_server.url, api_key="any", max_retries=0) as other:
        config: Any = {"format": {"type": "json_schema", "schema": NEVER}}
        options: Any = {"model": "fake", "max_tokens": 60, "messages": hello, "output_config": config}
        message = other.messages.create(**options)
        with other.messages.stream(**options) as streamed:
            final = streamed.get_final_message()
    for each in (message, final):
        assert each.stop_reason == "refusal"
        assert each.stop_details is not None
        assert WRONG in (each.stop_details.explanation or "")
    text_body = {"prompt": "Hello", "guided_json": NEVER, "max_tokens": 60}
    choice = httpx.post(f"{real_server.url}/v1/completions", json=text_body, timeout=60).json()["choices"][0]
    assert WRONG in choice["refusal"]


def test_what_is_cut_is_not_checked_and_what_has_one_attempt_is(real_server: Server) -> None:
    texts: list[tuple[dict[str, Any], bool]] = [
        ({"stop": ["e"]}, False),  # of true and of false
        ({"max_tokens": 1}, False),
        ({}, True),
    ]
    with httpx.Client(base_url=real_server.url, timeout=60) as http:
        for more, is_refused in texts:
            request = {"prompt": "Hello", "guided_json": NEVER, "max_tokens": 30, **more}
            choices = http.post("/v1/completions", json=request).json()["choices"]
            assert len(choices) == request.get("n", 1)
            assert [WRONG in (choice.get("refusal") or "") for choice in choices] == [is_refused] * len(choices), more


class Twice(BaseModel):
    """Two different ones of one value: there is none."""

    digits: Annotated[set[Literal[1]], Field(min_length=2, max_length=2)]


class Colours(BaseModel):
    found: dict[Colour, bool]
    seen: Annotated[set[Colour], Field(max_length=2)]


def test_openais_own_parser_of_pydantic_models(client: openai.OpenAI) -> None:
    """It parses what follows the schema, and leaves alone what is refused."""
    options: Any = {"model": "fake", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 300, "seed": 1}
    message = client.chat.completions.parse(response_format=Twice, **options).choices[0].message
    assert message.parsed is None
    assert "$.digits (uniqueItems)" in (message.refusal or "")
    right = client.chat.completions.parse(response_format=Colours, temperature=1, **options).choices[0].message
    assert isinstance(right.parsed, Colours), right


def tool(schema: Schema, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema, **more}}


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("required", {"tools": [tool(obj(x=NEVER))], "tool_choice": "required"}),
    ("named", {"tools": [tool(obj(x=NEVER))], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ("strict", {"tools": [tool(obj(x=NEVER), strict=True)], "tool_choice": "required"}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("name", "tools"), CALLS, ids=[name for name, _ in CALLS])
def test_arguments_of_calls_are_checked(real_server: Server, name: str, tools: dict[str, Any], stream: bool) -> None:
    request = body({}, stream=stream, max_tokens=80) | tools
    del request["response_format"]
    response = httpx.post(real_server.url + CHAT, json=request, timeout=60)
    assert response.status_code == 200, response.text
    if stream:
        lines = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        deltas = [each["choices"][0]["delta"] for each in lines]
        (refusal,) = [each["refusal"] for each in deltas if "refusal" in each]
    else:
        message = response.json()["choices"][0]["message"]
        refusal = message["refusal"]
        assert message["tool_calls"][0]["function"]["name"] == "f"
    assert "The arguments of f do not follow the schema: $.x (not)" in refusal


def test_calls_with_arguments_of_libraries_are_not_refused(real_server: Server) -> None:
    """Each schema is the named tool of a chat, and the required tool of a Messages request."""
    forced = {"tool_choice": {"type": "tool", "name": "f"}, "max_tokens": 60}
    hello = {"messages": [{"role": "user", "content": "Hello!"}]}

    def statuses(schema: Schema) -> list[int]:
        held = obj(x={key: value for key, value in schema.items() if key not in {"$defs", "definitions"}})
        held |= {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        request = body({}, **CALLS[1][1] | {"tools": [tool(held)], "max_tokens": 60})
        del request["response_format"]
        input_tool = {"name": "f", "input_schema": held, "strict": True}
        sent = [(CHAT, request), ("/v1/messages", {**hello, **forced, "model": "fake", "tools": [input_tool]})]
        return [http.post(path, json=each).status_code for path, each in sent]

    within = [each for each in SCHEMAS.values() if not re.search('"#"|"#/properties', json.dumps(each))]
    with httpx.Client(base_url=real_server.url, timeout=120) as http, ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(statuses, within[::3]))
    assert set(itertools.chain(*found)) == {200}


@pytest.mark.slow
def test_a_hostile_pattern_is_ended_and_others_are_checked_and_served(real_server: Server) -> None:
    """The pattern takes time beyond all bounds on any text of some length."""
    hostile = body({"type": "string", "minLength": 40, "pattern": r"^(?=(.|\w|\s)*§§§)", "maxLength": 60})
    with httpx.Client(base_url=real_server.url, timeout=120) as http, ThreadPoolExecutor(4) as pool:
        attacks = [pool.submit(answer, http, hostile | {"seed": seed, "stream": True}) for seed in range(3)]
        while not all(attack.done() for attack in attacks):
            assert http.get("/health").status_code == 200
            time.sleep(0.05)
        results = [attack.result() for attack in attacks]
        assert answer(http, body(NEVER, stream=True))[2]
    cut = [refusal for _, reason, refusal in results if reason == "stop"]
    assert cut
    assert all("took more than 1 s" in (refusal or "") for refusal in cut), results


INVALID: list[tuple[Schema, str]] = [
    ({"type": "objekt"}, "$.type"),
    ({"type": "array", "minItems": -1}, "$.minItems (minimum)"),
    ({"type": "string", "pattern": 5}, "$.pattern (type)"),
    (obj(a={"type": "array", "items": {"enum": "a"}}), "$.properties.a.items.enum (type)"),
    ({"properties": []}, "$.properties (type)"),
    ({"$ref": "#/$defs/missing"}, "'/$defs/missing'"),
    ({"$ref": "https://example.com/schema"}, "https://example.com/schema"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "greater than"),
]


@pytest.mark.parametrize(("schema", "place"), INVALID, ids=str)
def test_what_is_no_schema_is_refused_by_keyword_and_place(real_server: Server, schema: Schema, place: str) -> None:
    error = httpx.post(real_server.url + CHAT, json=body(schema), timeout=60).json()["error"]
    assert (error["param"], error["code"]) == ("response_format.json_schema.schema", "invalid_grammar")
    assert place in error["message"]
