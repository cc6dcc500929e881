"""Answers as OpenAI's clients read them: one choice a chunk, counts, fingerprints, fields that were ignored once."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pydantic
import pytest

from tests.api.bad_requests import CHAT, HELLO, TEXT
from tests.api.openai_schema import check_payload, check_stream
from tests.api.serving import Server, running_server

BODIES = [(CHAT, {"messages": HELLO}), (TEXT, {"prompt": "hi"})]


def chunks(http: httpx.Client, path: str, **body: Any) -> Iterator[dict[str, Any]]:
    """The chunks of a stream, without its end."""
    answer = http.post(path, json={"stream": True, **body})
    assert answer.status_code == 200, answer.text
    for line in answer.text.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def bad_variants() -> Iterator[tuple[str, dict[str, Any]]]:
    """Chunks that OpenAI would not send, each wrong in one field."""
    good = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "system_fingerprint": "f"}
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None}
    yield "null usage", {**good, "choices": [choice], "usage": None}
    yield "null fingerprint", {**good, "choices": [choice], "system_fingerprint": None}
    yield "text as number", {**good, "choices": [choice], "created": "1"}
    yield "unknown reason", {**good, "choices": [{**choice, "finish_reason": "abort"}]}
    yield "unknown field", {**good, "choices": [{**choice, "surprise": 1}]}
    yield "two choices", {**good, "choices": [choice, {**choice, "index": 1}]}


@pytest.mark.parametrize("payload", [pytest.param(bad, id=name) for name, bad in bad_variants()])
def test_the_schema_check_itself_finds_what_is_wrong(payload: dict[str, Any]) -> None:
    with pytest.raises((AssertionError, pydantic.ValidationError)):
        check_stream(b"data: " + json.dumps(payload).encode() + b"\n\n")


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_each_chunk_has_one_choice_and_loses_no_text(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    options = {**body, "n": 3, "max_tokens": 12, "ignore_eos": True}
    whole = http.post(path, json=options).json()["choices"]
    texts = ["", "", ""]
    for chunk in chunks(http, path, **options):
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"] if path == TEXT else choice["delta"].get("content", "")
    assert texts == [choice["text"] if path == TEXT else choice["message"]["content"] for choice in whole]


def test_chunks_with_a_role_alone_count_no_output(http: httpx.Client) -> None:
    usage = {"include_usage": True, "continuous_usage_stats": True}
    found = list(chunks(http, CHAT, messages=HELLO, n=2, max_tokens=5, ignore_eos=True, stream_options=usage))
    counts = [chunk["usage"]["completion_tokens"] for chunk in found]
    assert counts[:2] == [0, 0]
    assert [chunk["choices"][0]["delta"]["role"] for chunk in found[:2]] == ["assistant", "assistant"]
    assert counts[2] > 0
    assert counts[-1] == 10


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_answers_and_chunks_have_one_fingerprint(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    whole = http.post(path, json={**body, "max_tokens": 3}).json()
    usage = {"include_usage": True}
    found = {chunk["system_fingerprint"] for chunk in chunks(http, path, **body, max_tokens=3, stream_options=usage)}
    assert found == {whole["system_fingerprint"]}
    assert whole["system_fingerprint"].startswith(f"neuronserve-{http.get('/version').json()['version']}-")


def test_usage_is_in_the_last_chunk_alone_and_null_nowhere(http: httpx.Client) -> None:
    found = list(chunks(http, CHAT, messages=HELLO, max_tokens=3, stream_options={"include_usage": True}))
    assert ["usage" in chunk for chunk in found] == [False] * (len(found) - 1) + [True]
    for chunk in found:
        check_payload(chunk)


def test_chat_echo_puts_the_assistants_own_words_first(http: httpx.Client) -> None:
    started = [*HELLO, {"role": "assistant", "content": "Well, "}]
    options = {"messages": started, "continue_final_message": True, "max_tokens": 6, "ignore_eos": True, "n": 2}
    plain = [choice["message"]["content"] for choice in http.post(CHAT, json=options).json()["choices"]]
    echoed = http.post(CHAT, json={**options, "echo": True}).json()["choices"]
    assert [choice["message"]["content"] for choice in echoed] == ["Well, " + text for text in plain]
    texts = ["", ""]
    for chunk in chunks(http, CHAT, **options, echo=True):
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content", "")
    assert texts == ["Well, " + text for text in plain]


def test_chat_echo_says_nothing_of_the_users_words(http: httpx.Client) -> None:
    plain = http.post(CHAT, json={"messages": HELLO, "max_tokens": 4}).json()
    echoed = http.post(CHAT, json={"messages": HELLO, "max_tokens": 4, "echo": True}).json()
    assert echoed["choices"][0]["message"] == plain["choices"][0]["message"]


def test_top_p_of_zero_is_taken(http: httpx.Client) -> None:
    assert http.post(CHAT, json={"messages": HELLO, "max_tokens": 2, "top_p": 0}).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/health/live", "/v1/models", "/version", "/metrics"])
def test_head_is_get_without_a_body(server: Server, http: httpx.Client, path: str) -> None:
    answer, same = http.head(path), http.get(path)
    assert (answer.status_code, answer.content) == (same.status_code, b"")
    assert answer.headers["content-type"] == same.headers["content-type"]
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        data = b""
        while part := raw.recv(65536):
            data += part
    assert data.startswith(b"HTTP/1.1 200 ")
    assert data.endswith(b"\r\n\r\n")  # httpx would have hidden a body


def test_a_wrong_method_is_told_the_right_one(http: httpx.Client) -> None:
    answer = http.head(CHAT)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_the_list_of_models_has_a_slash_or_not(http: httpx.Client) -> None:
    assert http.get("/v1/models/").json() == http.get("/v1/models").json()


@pytest.mark.slow
def test_an_upgrade_is_answered_as_plain_http_without_advice(checkpoint: Any) -> None:
    with running_server(checkpoint) as server:
        for protocol in ("h2c", "websocket"):
            headers = {"Connection": "Upgrade", "Upgrade": protocol}
            assert httpx.get(f"{server.url}/health", headers=headers).status_code == 200
            assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == 200
        server.process.terminate()
        assert server.process.stderr is not None
        log = server.process.stderr.read().decode()
    assert "GET /v1/models" in log  # probes are left out of it
    assert "uvicorn" not in log
