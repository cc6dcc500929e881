"""Scripted answers over real sockets: every dialect gives the written text and calls, as the model's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import yaml

from neuronserve.server.errors import SettingsError
from neuronserve.server.typed_json import JsonError
from neuronserve.testing import ScriptRefused, Server, running_server
from neuronserve.testkit.cassette.cassette import Recording, recorded_request, recording
from neuronserve.testkit.cassette.script_writer import rule_of
from neuronserve.testkit.faults.rule_file import read_script
from neuronserve.testkit.faults.script import Scripts
from tests.api.test_tools import TOOLS
from tests.testkit.test_cassette import recorder

PARIS = "Paris.\n\nIt has 2.1 million people: «très bien» 🙂"
CALLS = [{"name": "get_weather", "arguments": {"city": "Oslo"}}, {"name": "set_timer", "arguments": {"minutes": 3}}]
FILE = """
rules:
  - {answer: "{\\"a\\": 1}", match: {message: "*as json*"}}
  - answer: {text: "I look.", calls: [{name: get_weather, arguments: {city: Oslo}},
             {name: set_timer, arguments: {minutes: 3}}]}
    match: {message: "*weather*", tool: get_weather, turn: 1}
  - {answer: "It is raining.", match: {message: "*weather*"}}
  - {answer: "once", match: {message: twice}, times: 1}
  - {fault: rate_limit, match: {message: "*busy*"}, times: 1}
"""


@pytest.fixture(scope="module")
def server(kernel_cache: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file = tmp_path_factory.mktemp("script") / "script.yaml"
    file.write_text(FILE + f"  - {{answer: {json.dumps(PARIS)}, match: {{message: '*capital*'}}}}\n")
    with running_server(args=["--script", str(file), "--kernel-cache-dir", kernel_cache]) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0)


def ask(client: openai.OpenAI, text: str, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="default", messages=messages, **options)


def test_every_dialect_gives_the_written_text(server: Server, client: openai.OpenAI) -> None:
    question = "The capital of France?"
    whole = ask(client, question, temperature=1.7, n=2)
    assert [choice.message.content for choice in whole.choices] == [PARIS] * 2
    assert {choice.finish_reason for choice in whole.choices} == {"stop"}
    streamed = [chunk.choices[0].delta.content or "" for chunk in ask(client, question, stream=True)]
    assert "".join(streamed) == PARIS
    assert len(streamed) > 3
    assert client.responses.create(model="default", input=question).output_text == PARIS
    texts = anthropic.Anthropic(base_url=server.url, api_key="none").messages.create(
        model="default", max_tokens=200, messages=[{"role": "user", "content": question}]
    )
    assert [block.text for block in texts.content if block.type == "text"] == [PARIS]
    assert client.completions.create(model="default", prompt=question, max_tokens=200).choices[0].text == PARIS


def test_usage_and_limits_are_those_of_any_output(client: openai.OpenAI) -> None:
    cut = ask(client, "The capital of France?", max_tokens=3)
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 3)
    assert PARIS.startswith(cut.choices[0].message.content)


@pytest.mark.parametrize("is_stream", [False, True])
def test_calls_are_in_the_models_own_form(client: openai.OpenAI, is_stream: bool) -> None:
    if is_stream:
        with client.chat.completions.stream(
            model="default", messages=[{"role": "user", "content": "The weather?"}], tools=TOOLS
        ) as stream:
            choice: Any = stream.get_final_completion().choices[0]
    else:
        choice = ask(client, "The weather?", tools=TOOLS).choices[0]
    found = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert found == [(call["name"], call["arguments"]) for call in CALLS]
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content or "").strip() == "I look."


def test_a_rule_is_for_a_turn_and_a_tool(client: openai.OpenAI) -> None:
    assert ask(client, "The weather?").choices[0].message.content == "It is raining."
    messages: Any = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": [{"type": "text", "text": "The weather?"}]},
    ]
    answer = client.chat.completions.create(model="default", messages=messages, tools=TOOLS)
    assert answer.choices[0].message.content == "It is raining."


def test_the_first_rule_with_a_turn_left_answers_else_the_model(client: openai.OpenAI) -> None:
    model = ask(client, "twice and more", temperature=0).choices[0].message.content
    first, second = (ask(client, "twice", temperature=0).choices[0].message.content for _ in range(2))
    assert first == "once"
    assert second not in {"once", ""}
    assert model != "once"


def test_a_format_of_the_request_gives_way(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}
    response_format: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = ask(client, "Answer as json", response_format=response_format)
    assert json.loads(answer.choices[0].message.content) == {"a": 1}


def test_faults_stand_beside_answers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.RateLimitError):
        ask(client, "Are you busy?")
    assert ask(client, "Are you busy?").choices[0].message.content


def test_a_test_has_answers_for_itself(server: Server, client: openai.OpenAI) -> None:
    long = "word " * 700
    with server.script({"answer": long, "match": {"message": "*capital*"}}):
        assert ask(client, "The capital of Chad?").choices[0].message.content == long
        fault = server.script({"fault": "server_error", "match": {"message": "*capital*"}})
        with fault, pytest.raises(openai.InternalServerError):
            ask(client, "The capital of Peru?")
    assert ask(client, "The capital of Chad?").choices[0].message.content == PARIS
    refused = pytest.raises(ScriptRefused, match=r"rules\[0\]\.mach: there is no such key \(did you mean match\?\)")
    with refused, server.script({"answer": "a", "mach": {}}):
        pass
    assert httpx.delete(f"{server.url}/admin/script/999").status_code == 404


def converse(client: openai.OpenAI) -> list[Any]:
    """Return the answers of a talk with a call, its result, and repeated questions, whole and streamed."""
    asked: Any = {"role": "user", "content": "Is it *cold* [in Oslo]?"}
    called: Any = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {
        "name": "get_weather", "arguments": "{}"}}]}  # fmt: skip
    result: Any = {"role": "tool", "tool_call_id": "1", "content": "-3"}
    options: Any = {"model": "default", "tools": TOOLS, "temperature": 0}
    with client.chat.completions.stream(messages=[asked], **options) as stream:
        first = stream.get_final_completion().choices[0].message
    then = client.chat.completions.create(messages=[asked, called, result], **options).choices[0].message
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in first.tool_calls or ()]
    response = client.responses.create(model="default", input="Is it warm?", temperature=0)
    prompt = client.completions.create(model="default", prompt="Winter is", temperature=0, stream=True)
    text = "".join(chunk.choices[0].text for chunk in prompt)
    return [first.content, calls, then.content, response.output_text, text]


def test_a_recorded_talk_is_a_script(server: Server, client: openai.OpenAI, tmp_path: Path) -> None:
    """In the recorded order where one question got several answers; texts of patterns stand for themselves."""
    file = tmp_path / "talk.yaml"
    rules = [
        {"answer": {"text": "I look.", "calls": CALLS[:1]}, "match": {"message": "*cold*"}, "times": 1},
        {"answer": PARIS, "match": {"message": "*cold*"}},
        {"answer": "Yes.\n", "match": {"message": "*warm*"}},
        {"answer": " over: *", "match": {"message": "Winter*"}},
    ]
    with server.script(*rules), recorder(server.url, file) as url:
        proxied = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        proxied.models.list()  # no rule
        said = converse(proxied)
    assert said == ["I look.", [("get_weather", {"city": "Oslo"})], PARIS, "Yes.\n", " over: *"]
    assert len(read_script(file).answers) == 4
    with server.script(*yaml.safe_load(file.read_text())["rules"]):
        assert converse(client) == said
        assert ask(client, "Is it scold in Oslo?", max_tokens=4).choices[0].message.content not in {PARIS, ""}


def recorded(body: dict[str, Any], answer: Any, status: int = 200) -> Recording:
    request = recorded_request("POST", "/v1/chat/completions", json.dumps(body).encode(), {})
    return recording(request, status, {}, json.dumps(answer).encode(), [])


@pytest.mark.parametrize(
    ("body", "answer", "status", "why"),
    [
        ({"prompt": "a"}, {"choices": [{"text": "b"}]}, 429, "status is 429"),
        ({"input": [3]}, {"data": []}, 200, "no text of a user"),
        ({"prompt": "a"}, {"data": []}, 200, "neither text nor calls"),
        ({"prompt": "a"}, {"choices": [{"text": 3}]}, 200, "choices"),
        (
            {"prompt": "a"},
            {"choices": [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}}]},
            200,
            "arguments",
        ),
    ],
)
def test_an_answer_that_no_rule_can_give_is_left_out(
    body: dict[str, Any], answer: dict[str, Any], status: int, why: str
) -> None:
    with pytest.raises(JsonError, match=why):
        rule_of(recorded(body, answer, status))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: [{answer: 3}]", r"rules\[0\]\.answer"),
        ("rules: [{answer: {txt: a}}]", r"rules\[0\]\.answer"),
        ("rules: [{answer: a, match: {mesage: b}}]", "did you mean message"),
        ("rules: [{answer: a, match: {turn: 0}}]", "turn"),
        ("rules: [{}]", "answer, or one of rate_limit"),
        ("rules: [{fault: cutt}]", "did you mean cut"),
        ("rules: ][", "is not YAML"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "script.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_script(file)


def test_a_function_answers_what_it_wants(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        "def answer(request):\n    return {'b': {'text': request['prompt']}, 'c': 3}.get(request['prompt'])\n"
    )
    scripts = Scripts(read_script(file))
    assert scripts.answer("/v1/completions", {}, {"prompt": "a"}) is None
    found = scripts.answer("/v1/completions", {}, {"prompt": "b"})
    assert found is not None
    assert found.text == "b"
    with pytest.raises(Exception, match="script: answer"):
        scripts.answer("/v1/completions", {}, {"prompt": "c"})
    file.write_text("answer = 1\n")
    with pytest.raises(SettingsError, match="no function answer"):
        read_script(file)
