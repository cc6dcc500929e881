"""Ollama's API over real sockets, by Ollama's own client: the answers are those of OpenAI's endpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from tests.api.bad_requests import CHAT, TEXT
from tests.api.serving import Server, running_server
from tests.api.test_tools import HELLO, OSLO, TOOLS

MODEL = "fake"
GREEDY = {"temperature": 0, "num_predict": 24}


@pytest.fixture(scope="module")
def asked(real_server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(real_server.url) as client:
        yield client


@pytest.fixture(scope="module")
def plain(real_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=real_server.url, timeout=60) as client:
        yield client


def openai_text(plain: httpx.Client, **given: Any) -> str:
    body = {"messages": HELLO, "temperature": 0, "max_tokens": 24, **given}
    text: str = plain.post(CHAT, json=body).raise_for_status().json()["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}:latest"])
def test_a_chat_has_openais_text_whole_and_in_lines(asked: ollama.Client, plain: httpx.Client, name: str) -> None:
    whole = asked.chat(name, HELLO, options=GREEDY)
    assert whole.message.content == openai_text(plain)
    assert (whole.model, whole.done, whole.done_reason, whole.message.role) == (name, True, "stop", "assistant")
    assert whole.eval_count is not None
    assert 0 < whole.eval_count <= 24
    assert None not in (whole.prompt_eval_count, whole.total_duration, whole.eval_duration, whole.created_at)
    *parts, last = asked.chat(name, HELLO, options=GREEDY, stream=True)
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in (*parts, last)] == [*(False for _ in parts), True]
    assert (last.message.content, last.eval_count) == ("", whole.eval_count)


def test_a_stream_is_lines_of_json(plain: httpx.Client) -> None:
    answer = plain.post("/api/chat", json={"model": MODEL, "messages": HELLO, "options": GREEDY})
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["model"] for line in answer.text.splitlines()] == [MODEL] * answer.text.count("\n")


def test_calls_are_whole_and_their_results_are_read(asked: ollama.Client) -> None:
    options = {**GREEDY, "num_predict": 200}
    whole = asked.chat(MODEL, OSLO, tools=TOOLS, options=options).message
    streamed = [part.message for part in asked.chat(MODEL, OSLO, tools=TOOLS, options=options, stream=True)]
    found = [call for message in (whole, *streamed) for call in message.tool_calls or ()]
    assert [(call.function.name, call.function.arguments) for call in found] == [("get_weather", {"city": "Oslo"})] * 2
    result = {"role": "tool", "tool_name": "get_weather", "content": '{"temperature": 7, "unit": "celsius"}'}
    assert "7" in (asked.chat(MODEL, [*OSLO, whole, result], tools=TOOLS, options=options).message.content or "")


def test_a_format_holds(asked: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    options = {**GREEDY, "num_predict": 200}
    answer = asked.chat(MODEL, HELLO, format=schema, options=options)
    assert json.loads(answer.message.content or "")["a"] in {"x", "y"}
    made = asked.generate(MODEL, "Hello!", format="json", options=options)
    assert made.done_reason == "length" or isinstance(json.loads(made.response), dict)
    assert made.response.startswith("{")


def test_a_prompt_is_a_chat_unless_it_is_raw(asked: ollama.Client, plain: httpx.Client) -> None:
    assert asked.generate(MODEL, "Hello!", options=GREEDY).response == openai_text(plain)
    system = [{"role": "system", "content": "Be brief."}, *HELLO]
    assert asked.generate(MODEL, "Hello!", "", system="Be brief.", options=GREEDY).response == openai_text(
        plain, messages=system
    )
    raw = asked.generate(MODEL, "Once upon", raw=True, options={**GREEDY, "num_predict": 5, "stop": ["zzz"]})
    body = {"prompt": "Once upon", "temperature": 0, "max_tokens": 5}
    assert raw.response == plain.post(TEXT, json=body).json()["choices"][0]["text"]
    assert (raw.done_reason, raw.eval_count) == ("length", 5)
    assert (
        "".join(
            part.response
            for part in asked.generate(MODEL, "Once upon", raw=True, options={**GREEDY, "num_predict": 5}, stream=True)
        )
        == raw.response
    )


def test_options_are_openais(asked: ollama.Client, plain: httpx.Client) -> None:
    options = {"temperature": 1.3, "seed": 5, "top_k": 9, "repeat_penalty": 1.4, "num_predict": 12, "num_ctx": 4096}
    given = {"temperature": 1.3, "seed": 5, "top_k": 9, "repetition_penalty": 1.4, "max_tokens": 12}
    assert asked.chat(MODEL, HELLO, options=options).message.content == openai_text(plain, **given)


def test_embeddings_are_openais(asked: ollama.Client, plain: httpx.Client) -> None:
    expected = [
        each["embedding"] for each in plain.post("/v1/embeddings", json={"input": ["a cat", "a dog"]}).json()["data"]
    ]
    found = asked.embed(MODEL, ["a cat", "a dog"])
    assert [list(each) for each in found.embeddings] == expected
    assert found.prompt_eval_count
    assert found.total_duration
    assert list(asked.embeddings(MODEL, "a cat").embedding) == expected[0]


def test_clients_learn_what_is_served(asked: ollama.Client, plain: httpx.Client) -> None:
    (listed,) = asked.list().models
    (running,) = asked.ps().models
    assert (listed.model, running.model) == (MODEL, MODEL)
    assert listed.details is not None
    assert listed.details.parameter_size
    assert listed.size
    shown = asked.show(MODEL)
    assert {"completion", "tools", "embedding"} <= set(shown.capabilities or ())
    assert shown.template
    assert "general.parameter_count" in (shown.modelinfo or {})
    assert plain.get("/api/version").json()["version"]
    assert asked.chat(MODEL, []).done_reason == asked.generate(MODEL, "").done_reason == "load"


@pytest.mark.parametrize(
    ("path", "given", "status", "text"),
    [
        ("chat", {"model": "other"}, 404, "'other'"),
        ("chat", {}, 400, "model"),
        ("chat", {"messages": [{"role": "robot", "content": ""}]}, 400, "messages[0].role"),
        ("chat", {"options": {"temperature": 9}}, 400, "options.temperature"),
        ("chat", {"options": {"mirostat": 2}}, 400, "options.mirostat"),
        ("chat", {"options": {"num_predict": "all"}}, 400, "options.num_predict"),
        ("chat", {"format": {"type": "nothing"}}, 400, "format"),
        ("chat", {"think": True}, 400, "think"),
        ("generate", {"prompt": "a", "template": "{{ .Prompt }}"}, 400, "template"),
        ("generate", {"prompt": "a", "context": [1]}, 400, "context"),
        ("generate", {"prompt": "a", "images": ["aGk="]}, 400, "prompt"),
        ("embed", {"input": []}, 400, "input"),
        ("embed", {"input": "a", "dimensions": 10**6}, 400, "dimensions"),
        ("pull", {}, 404, "/api/pull"),
    ],
)
def test_refusals_are_a_text_that_names_the_field(
    plain: httpx.Client, path: str, given: dict[str, Any], status: int, text: str
) -> None:
    base = {"model": MODEL, "messages": HELLO} if path == "chat" and given else {"model": MODEL} if given else {}
    answer = plain.post(f"/api/{path}", json={**base, **given})
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    assert text in answer.json()["error"]


def test_a_key_is_asked_for(checkpoint: Path) -> None:
    with running_server(checkpoint, "--api-key", "a-secret-key") as server:
        assert httpx.get(f"{server.url}/api/version").status_code == 200
        refused = httpx.get(f"{server.url}/api/tags")
        assert (refused.status_code, list(refused.json())) == (401, ["error"])
        with ollama.Client(server.url, headers={"Authorization": "Bearer a-secret-key"}) as client:
            assert client.list().models
