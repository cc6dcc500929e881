"""Tool calls from the outside: the official client, a real socket, and the model that the project ships."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import jsonschema
import openai
import pydantic
import pytest

from neuronserve.server.api.config import ApiConfig
from neuronserve.server.api.text_files import load_text_files
from neuronserve.server.api.tools.output import OutputPlan, keep_tags, output_plan
from neuronserve.server.api.wire.chat import ChatRequest
from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import Server, running_server

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIMER = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "description": "Start a timer",
        "parameters": {
            "type": "object",
            "properties": {"minutes": {"type": "integer", "minimum": 1, "maximum": 600}},
            "required": ["minutes"],
            "additionalProperties": False,
        },
    },
}
TOOLS = [WEATHER, TIMER]
PARAMETERS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}  # type: ignore[index]
OSLO = [{"role": "user", "content": "What is the weather in Oslo?"}]
HELLO = [{"role": "user", "content": "Hello!"}]
NAMED = {"type": "function", "function": {"name": "set_timer"}}


def ask(client: openai.OpenAI, messages: list[Any], **options: Any) -> Any:
    """The one choice of a greedy answer, unless `options` ask for something else."""
    given: Any = {"model": "fake", "messages": messages, "temperature": 0, "max_tokens": 200, **options}
    return client.chat.completions.create(**given).choices[0]


def stream(client: openai.OpenAI, messages: list[Any], **options: Any) -> list[Any]:
    given: Any = {"model": "fake", "messages": messages, "temperature": 0, "max_tokens": 200, **options}
    return [choice for chunk in client.chat.completions.create(**given, stream=True) for choice in chunk.choices]


def added_up(choices: Iterable[Any]) -> tuple[str, list[tuple[str, str]], str | None]:
    """Content, calls and finish reason of a stream; checks the shape of each fragment on the way."""
    content, finish = "", None
    calls: dict[int, list[str]] = {}
    for choice in choices:
        content += choice.delta.content or ""
        finish = choice.finish_reason or finish
        for part in choice.delta.tool_calls or ():
            if part.index not in calls:
                assert part.index == len(calls)
                assert part.id.startswith("call_")
                assert part.type == "function"
                calls[part.index] = [part.function.name, ""]
            else:
                assert (part.id, part.type, part.function.name) == (None, None, None)
            calls[part.index][1] += part.function.arguments
    return content, [(name, arguments) for name, arguments in calls.values()], finish


def calls_of(choice: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]


def test_the_model_calls_a_tool_and_says_what_came_of_it(client: openai.OpenAI) -> None:
    choice = ask(client, OSLO, tools=TOOLS)
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    ((name, arguments),) = calls_of(choice)
    assert (name, json.loads(arguments)) == ("get_weather", {"city": "Oslo"})
    result = {
        "role": "tool",
        "tool_call_id": choice.message.tool_calls[0].id,
        "content": '{"temperature": 17, "condition": "cloudy"}',
    }
    told = ask(client, [*OSLO, choice.message.model_dump(exclude_none=True), result], tools=TOOLS)
    assert told.finish_reason == "stop"
    assert not told.message.tool_calls
    assert "17" in told.message.content


@pytest.mark.parametrize(
    "question",
    ["What is the weather in Oslo?", "Set a timer for 25 minutes.", "What is the weather in Oslo and in Rome?"],
)
def test_streamed_fragments_add_up_to_the_whole_answer(client: openai.OpenAI, question: str) -> None:
    messages = [{"role": "user", "content": question}]
    whole = ask(client, messages, tools=TOOLS)
    choices = stream(client, messages, tools=TOOLS)
    content, calls, finish = added_up(choices)
    assert (content or None, calls, finish) == (whole.message.content, calls_of(whole), whole.finish_reason)
    assert finish == "tool_calls"
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), PARAMETERS[name])
    assert "<" not in content


def test_an_answer_without_calls_is_content(client: openai.OpenAI) -> None:
    choice = ask(client, HELLO, tools=TOOLS)
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert choice.message.content
    assert added_up(stream(client, HELLO, tools=TOOLS)) == (choice.message.content, [], "stop")


def test_two_calls_at_once_or_one_alone(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "What is the weather in Oslo and in Rome?"}]
    both = calls_of(ask(client, messages, tools=TOOLS))
    assert [json.loads(arguments)["city"] for _, arguments in both] == ["Oslo", "Rome"]
    assert calls_of(ask(client, messages, tools=TOOLS, parallel_tool_calls=False)) == both[:1]
    forced = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    assert len(calls_of(ask(client, messages, **forced))) == 1


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_forced_call_is_valid_however_hot_the_model_runs(client: openai.OpenAI, choice: Any) -> None:
    options = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "temperature": 1.5}
    ended = 0
    for seed in range(6):
        whole = ask(client, HELLO, **options, seed=seed)
        assert added_up(stream(client, HELLO, **options, seed=seed))[1:] == (calls_of(whole), whole.finish_reason)
        if whole.finish_reason == "length":
            continue
        ended += 1
        ((name, arguments),) = calls_of(whole)
        jsonschema.validate(json.loads(arguments), PARAMETERS[name])
        assert whole.message.content is None
        assert (name, whole.finish_reason) in (
            {("set_timer", "stop")}  # as OpenAI has it where the client named the function itself
            if choice == NAMED
            else {("set_timer", "tool_calls"), ("get_weather", "tool_calls")}
        )
    assert ended > 2


def test_tools_that_are_not_allowed_are_shown_and_not_called(client: openai.OpenAI) -> None:
    timer = {"type": "function", "function": {"name": "set_timer"}}

    def allowed(mode: str) -> dict[str, Any]:
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [timer]}}

    for seed in range(4):
        options: dict[str, Any] = {"tools": TOOLS, "temperature": 1.2, "seed": seed}
        required = ask(client, OSLO, tool_choice=allowed("required"), **options)
        assert {name for name, _ in calls_of(required)} == {"set_timer"}
        free = ask(client, OSLO, tool_choice=allowed("auto"), **options)
        assert {name for name, _ in calls_of(free)} <= {"set_timer"}
    assert calls_of(ask(client, OSLO, tools=TOOLS)) == [("get_weather", '{"city": "Oslo"}')]


def test_tools_that_may_not_be_called_are_as_if_not_there(client: openai.OpenAI) -> None:
    without = ask(client, OSLO)
    with_none = ask(client, OSLO, tools=TOOLS, tool_choice="none")
    assert with_none.message == without.message
    assert with_none.message.tool_calls is None


def test_a_strict_function_binds_calls_and_leaves_text_alone(client: openai.OpenAI) -> None:
    strict = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]  # type: ignore[dict-item]
    plain = ask(client, HELLO, tools=TOOLS)
    assert ask(client, HELLO, tools=strict).message.content == plain.message.content
    for seed in range(6):
        choice = ask(client, OSLO, tools=strict, temperature=1.5, seed=seed)
        if choice.finish_reason == "tool_calls":
            for name, arguments in calls_of(choice):
                jsonschema.validate(json.loads(arguments), PARAMETERS[name])


def test_an_answer_is_a_call_or_follows_the_format(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    called = ask(client, OSLO, tools=TOOLS, response_format=form)
    assert calls_of(called) == [("get_weather", '{"city": "Oslo"}')]
    messages = [{"role": "user", "content": "Extract name, age as JSON: Marek is 42 years old."}]
    answered = ask(client, messages, tools=TOOLS, response_format=form)
    jsonschema.validate(json.loads(answered.message.content), schema)


def test_choices_of_one_request_have_their_own_calls(client: openai.OpenAI) -> None:
    chat: Any = client.chat.completions
    options = {"model": "fake", "messages": OSLO, "tools": TOOLS, "temperature": 0, "max_tokens": 100, "n": 3}
    whole = chat.create(**options)
    ids = [call.id for choice in whole.choices for call in choice.message.tool_calls]
    assert len(set(ids)) == 3
    parts: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    for chunk in chat.create(**options, stream=True):
        for choice in chunk.choices:
            parts[choice.index].append(choice)
    for index, choices in parts.items():
        assert added_up(choices)[1] == calls_of(whole.choices[index])


def test_log_probabilities_of_a_call_are_those_of_all_its_tokens(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"tools": TOOLS, "logprobs": True}
    whole = ask(client, OSLO, **options).logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in whole).startswith(b"<tool_call>")
    streamed = [choice.logprobs.content for choice in stream(client, OSLO, **options) if choice.logprobs]
    assert [entry for part in streamed for entry in part] == whole


def test_the_length_cuts_a_call_and_says_so(client: openai.OpenAI) -> None:
    choice = ask(client, OSLO, tools=TOOLS, tool_choice="required", max_tokens=14)
    assert choice.finish_reason == "length"
    content, calls, finish = added_up(stream(client, OSLO, tools=TOOLS, tool_choice="required", max_tokens=14))
    assert (content or None, calls, finish) == (choice.message.content or None, calls_of(choice), "length")


def test_tokenize_shows_the_prompt_with_its_tools(real_server: Server) -> None:
    with httpx.Client(base_url=real_server.url, timeout=60) as http:
        plain = http.post("/tokenize", json={"messages": OSLO}).json()
        tooled = http.post("/tokenize", json={"messages": OSLO, "tools": TOOLS}).json()
        text = http.post("/detokenize", json={"tokens": tooled["tokens"]}).json()["prompt"]
    assert tooled["count"] > plain["count"]
    assert "get_weather(" in text


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


UNKNOWN = {"tools": TOOLS, "tool_choice": function("nope")}
NOT_ALLOWED = {
    "tools": TOOLS,
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function("nope")]}},
}
NOT_FOLLOWED = {"tools": [WEATHER, function("f", parameters={"properties": []})], "tool_choice": "required"}
TOO_LARGE = {"tools": [function("f", parameters={"enum": ["x" * 140_000]})], "tool_choice": "required"}
HUGE = {"tools": [function("f", parameters={"maximum": 10**30})]}
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [{"type": "function"}]}, "tools[0].function", "required"),
    ({"tools": [{"type": "code", "function": {"name": "f"}}]}, "tools[0].type", "'function'"),
    ({"tools": [function("two words")]}, "tools[0].function.name", "pattern"),
    ({"tools": [function("f")] * 2}, "tools[1].function.name", "'f'"),
    ({"tools": [function("f")] * 129}, "tools", "128"),
    ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice", "required"),
    (UNKNOWN, "tool_choice.function.name", "get_weather, set_timer"),
    ({"tool_choice": "auto"}, "tool_choice", "tools"),
    (NOT_ALLOWED, "tool_choice.allowed_tools.tools[0].function.name", "get_weather, set_timer"),
    (NOT_FOLLOWED, "tools[1].function.parameters", "$.properties (type)"),
    (TOO_LARGE, "tools[0].function.parameters", "131072"),
    (HUGE, "messages", "2**64"),
    ({"tools": TOOLS, "structured_outputs": {"regex": "a"}}, "structured_outputs.regex", "tools"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function", "required"),
    ({"functions": [{"name": "f"}]}, "functions", "not supported"),
]


@pytest.mark.parametrize(("change", "param", "words"), BAD, ids=lambda value: str(value)[:60])
def test_bad_tools_are_refused_by_field(real_server: Server, change: dict[str, Any], param: str, words: str) -> None:
    body = {"messages": HELLO, "max_tokens": 1, **change}
    response = httpx.post(real_server.url + CHAT, json=body, timeout=60)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert words in error["message"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tools": TOOLS}, "tools"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tools"),
        ({"messages": [*HELLO, {"role": "tool", "tool_call_id": "1", "content": "x"}]}, "messages[1].role"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
            "messages[0].tool_calls",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_template_that_knows_no_tools_is_named(server: Server, change: dict[str, Any], param: str) -> None:
    response = httpx.post(server.url + CHAT, json={"messages": HELLO, "max_tokens": 1, **change}, timeout=30)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, param, "unsupported_parameter")
    assert "--chat-template" in error["message"]


def test_tools_are_no_field_of_completions(real_server: Server) -> None:
    response = httpx.post(real_server.url + "/v1/completions", json={"prompt": "a", "tools": TOOLS}, timeout=30)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


OTHER_FORM = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}<calls>{% endif %}"


@pytest.mark.slow
def test_the_settings_say_who_decides_and_in_which_form(checkpoint: Path) -> None:
    body: dict[str, Any] = {"messages": HELLO, "max_tokens": 1, "tools": TOOLS}
    options = ("--chat-template", OTHER_FORM, "--no-enable-auto-tool-choice")
    with running_server(checkpoint, *options) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        unread = http.post(CHAT, json=body)
    with (
        running_server(checkpoint, *options, "--tool-call-parser", "hermes") as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        undecided = http.post(CHAT, json=body)
        forced = http.post(CHAT, json={**body, "tool_choice": "required"})
        silent = http.post(CHAT, json={**body, "tool_choice": "none"})
    assert (unread.status_code, unread.json()["error"]["param"]) == (400, "tools")
    assert "--tool-call-parser" in unread.json()["error"]["message"]
    assert (undecided.status_code, undecided.json()["error"]["param"]) == (400, "tool_choice")
    assert "--no-enable-auto-tool-choice" in undecided.json()["error"]["message"]
    assert (forced.status_code, silent.status_code) == (200, 200)


def test_tags_that_are_special_tokens_stay_in_the_text(tmp_path: Path) -> None:
    """Many checkpoints mark the tags as special, which their tokenizers leave out of the text."""
    model = tmp_path / "model"
    shutil.copytree(DEFAULT_MODEL, model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["special"] = True
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    service = load_text_files(ApiConfig(("m",), model, model))
    try:
        served: Any = SimpleNamespace(tokenizer=service.tokenizer, template=service.template)
        body = ChatRequest.model_validate_json(json.dumps({"messages": OSLO, "tools": TOOLS}))
        config = ApiConfig(("m",), model, model)
        plan = output_plan(served, config, body)
        kept = keep_tags(served, plan, body)
        assert kept.skip_special_tokens is False
        assert keep_tags(served, OutputPlan(), body).skip_special_tokens is None
    finally:
        service.close()


def test_the_openai_helper_for_streams_reads_the_calls(client: openai.OpenAI) -> None:
    """The client's own accumulator of events, as agents use it."""
    options: Any = {"model": "fake", "messages": OSLO, "tools": TOOLS, "temperature": 0, "max_tokens": 100}
    with client.chat.completions.stream(**options) as events:
        kinds = {event.type for event in events}
        final = events.get_final_completion()
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert json.loads(calls[0].function.arguments) == {"city": "Oslo"}


class Person(pydantic.BaseModel):
    name: str
    age: int


def test_the_openai_helper_for_schemas_parses_the_answer(client: openai.OpenAI) -> None:
    """`parse` sends a strict schema made from a pydantic model, and strict functions."""
    options: Any = {"model": "fake", "temperature": 0, "max_tokens": 100}
    messages: Any = [{"role": "user", "content": "Extract name, age as JSON: Marek is 42 years old."}]
    answer = client.chat.completions.parse(**options, messages=messages, response_format=Person)
    assert isinstance(answer.choices[0].message.parsed, Person)
    called = client.chat.completions.parse(
        **options,
        messages=messages,
        tools=[openai.pydantic_function_tool(Person, name="save_person")],
        tool_choice="required",
    )
    calls = called.choices[0].message.tool_calls
    assert calls is not None
    assert isinstance(calls[0].function.parsed_arguments, Person)
