"""Endpoints beside OpenAI's two: SageMaker's contract, descriptions of the server, and paths that it does not offer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.api.bad_endpoints import INVOKE
from tests.api.bad_requests import CHAT, HELLO, TEXT
from tests.api.openai_schema import check_payload
from tests.api.serving import MAX_MODEL_LEN, TEMPLATE, VOCAB_SIZE, Server, running_server

SOME = {"max_tokens": 4, "ignore_eos": True}
JSON_LINES = {"Content-Type": "application/jsonlines"}


def lines_of(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def choices(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def test_ping_is_readiness(http: httpx.Client) -> None:
    assert http.get("/ping").json() == http.get("/health/ready").json() == {"status": "ready"}


@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": HELLO, **SOME}), (TEXT, {"prompt": "a", **SOME})])
def test_invocations_take_either_body(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    assert choices(http.post(INVOKE, json=body)) == choices(http.post(path, json=body))
    stream = http.post(INVOKE, json={**body, "stream": True})
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.text.endswith("data: [DONE]\n\n")


def test_a_batch_of_lines_is_answered_line_by_line(http: httpx.Client) -> None:
    bodies = [{"prompt": f"line {i}", **SOME} for i in range(9)] + [{"messages": HELLO, **SOME}]
    answer = http.post(INVOKE, content=lines_of(*bodies), headers=JSON_LINES)
    assert answer.headers["content-type"].startswith("application/jsonlines")
    found = [json.loads(line) for line in answer.text.splitlines()]
    for item in found:
        check_payload(item)
    assert len({item["id"] for item in found}) == len(bodies)
    assert [item["choices"] for item in found] == [choices(http.post(INVOKE, json=body)) for body in bodies]


BAD_LINES: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b"\n\n", None),
    (lines_of(*[{"prompt": "a"}] * 1025), None),
    (lines_of({"prompt": "a"}, {"prompt": ""}), "prompt"),
    (lines_of({"prompt": "a"}, {"messages": []}), "messages"),
    (lines_of({"prompt": "a"}, {"prompt": "a", "stream": True}), "stream"),
    (lines_of({"prompt": "a"}, {}), "messages"),
    (b'{"prompt": "a"}\n{', None),
]


@pytest.mark.parametrize(("data", "param"), BAD_LINES, ids=lambda value: str(value)[:40])
def test_one_bad_line_refuses_the_batch_and_is_named(http: httpx.Client, data: bytes, param: str | None) -> None:
    answer = http.post(INVOKE, content=data, headers=JSON_LINES)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    if param is not None:
        assert answer.json()["error"]["message"].startswith("line 2: ")


def test_more_lines_than_the_queue_takes_are_refused_at_once(http: httpx.Client) -> None:
    data = lines_of(*[{"prompt": "a", "n": 128, "max_tokens": 1}] * 100)
    answer = http.post(INVOKE, content=data, headers=JSON_LINES)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")


def test_other_types_of_bodies_are_415(http: httpx.Client) -> None:
    assert http.post(INVOKE, content=b"{}", headers={"Content-Type": "text/csv"}).status_code == 415


def test_tokenizer_info_is_the_config_with_the_template_in_use(http: httpx.Client) -> None:
    found = http.get("/tokenizer_info").json()
    assert (found["eos_token"], found["chat_template"], found["vocab_size"]) == ("<|eos|>", TEMPLATE, VOCAB_SIZE)


@pytest.mark.slow
def test_server_info_has_limits_and_no_secret(checkpoint: Path) -> None:
    with running_server(checkpoint, "--api-key", "s3cret", "--max-logprobs", "7") as server:
        for path in ("/server_info", "/tokenizer_info"):
            assert httpx.get(server.url + path).status_code == 401
        assert httpx.post(server.url + INVOKE, json={"prompt": "a"}).status_code == 401
        assert httpx.get(f"{server.url}/ping").status_code == 200
        answer = httpx.get(f"{server.url}/server_info", headers={"Authorization": "Bearer s3cret"})
    found = answer.json()
    assert (found["max_model_len"], found["max_logprobs"], found["context_overflow"]) == (MAX_MODEL_LEN, 7, "clip")
    assert "s3cret" not in answer.text
    assert str(checkpoint) not in answer.text


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/audio/speech", "speech"),
        ("/v1/images/generations", "images"),
        ("/v1/images/edits", "images"),
        ("/v1/moderations", "moderations"),
        ("/v1/videos", "video"),
    ],
)
def test_what_a_text_model_does_not_offer_says_what_it_does(http: httpx.Client, path: str, kind: str) -> None:
    for answer in (http.post(path, json={"input": "a"}), http.post(path, files={"file": b"RIFF"})):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (404, "not_supported")
        assert f"has no {kind}" in error["message"]
        assert CHAT in error["message"]


def test_the_official_client_reads_what_is_offered(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="/v1/chat/completions"):
        client.moderations.create(input="a")
    with pytest.raises(openai.NotFoundError, match="has no images"):
        client.images.generate(prompt="a", model="m")


@pytest.fixture(scope="module")
def trusting(checkpoint: Path) -> Iterator[Server]:
    with running_server(checkpoint, "--trust-request-chat-template") as running:
        yield running


def test_a_trusted_template_of_a_request_renders_it(trusting: Server) -> None:
    template = "{{ eos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"
    found = httpx.post(f"{trusting.url}/tokenize", json={"messages": HELLO, "chat_template": template}, timeout=60)
    assert httpx.post(
        f"{trusting.url}/detokenize", json={"tokens": found.json()["tokens"], "model": "fake"}
    ).json() == {"prompt": "<|eos|>[hi]"}
    body = {"messages": HELLO, **SOME, "return_token_ids": True}
    answer = httpx.post(trusting.url + CHAT, json={**body, "chat_template": template}, timeout=60)
    assert answer.json()["prompt_token_ids"] == found.json()["tokens"]
    own = httpx.post(trusting.url + CHAT, json=body, timeout=60).json()["prompt_token_ids"]
    assert own == httpx.post(trusting.url + CHAT, json={**body, "chat_template": TEMPLATE}).json()["prompt_token_ids"]


HOSTILE = [
    "{% for",
    "{{ raise_exception('no') }}",
    "{{ ''.__class__.__mro__ }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
]


@pytest.mark.parametrize("template", HOSTILE)
def test_a_hostile_template_is_refused_and_the_next_is_not(trusting: Server, template: str) -> None:
    answer = httpx.post(trusting.url + CHAT, json={"messages": HELLO, "chat_template": template}, timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "chat_template", "chat_template_error")
    good = {"messages": HELLO, **SOME, "chat_template": "{{ messages[0].content }}"}
    assert httpx.post(trusting.url + CHAT, json=good, timeout=60).status_code == 200


DOCUMENTED: list[tuple[str, str, int, str]] = [
    ("post", CHAT, 200, "application/json"),
    ("post", CHAT, 200, "text/event-stream"),
    ("post", TEXT, 200, "text/event-stream"),
    ("post", TEXT, 429, "application/json"),
    ("post", INVOKE, 200, "application/jsonlines"),
    ("post", INVOKE, 415, "application/json"),
    ("get", "/metrics", 200, "text/plain"),
    ("get", "/metrics", 200, "application/openmetrics-text"),
    ("get", "/health", 503, "application/json"),
    ("get", "/v1/models/{model_id}", 404, "application/json"),
    ("post", "/start_profile", 409, "application/json"),
    ("post", "/v1/load_lora_adapter", 200, "text/plain"),
    ("post", "/v1/load_lora_adapter", 403, "application/json"),
]


@pytest.mark.parametrize(("method", "path", "status", "kind"), DOCUMENTED)
def test_the_openapi_page_has_it(http: httpx.Client, method: str, path: str, status: int, kind: str) -> None:
    page = http.get("/openapi.json").json()
    assert kind in page["paths"][path][method]["responses"][str(status)]["content"]


def test_the_openapi_page_has_no_status_that_never_comes_and_no_loose_end(http: httpx.Client) -> None:
    text = http.get("/openapi.json").text
    page = json.loads(text)
    for operations in page["paths"].values():
        for operation in operations.values():
            assert "422" not in operation["responses"]
            assert {"413", "431", "500"} <= set(operation["responses"])
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(page["components"]["schemas"])
