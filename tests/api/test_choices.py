"""Choices of an answer: their stream, their times and limits, and the text around them."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.bad_requests import CHAT, HELLO, TEXT
from tests.api.serving import Server, running_server

MARKS = {"<|start|>": "<fim_prefix>", "<|end|>": "<fim_suffix>", "<|pad|>": "<fim_middle>"}
TIMES = {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second"}


def ask(url: str, path: str = TEXT, **body: Any) -> Any:
    answer = httpx.post(url + path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def slow(checkpoint: Path) -> Iterator[Server]:
    options = ("--device", "slow:0.02", "--enable-per-request-metrics")
    with running_server(checkpoint, *options) as running:
        yield running


@pytest.mark.slow
def test_a_timeout_ends_an_answer_with_what_there_is(checkpoint: Path, hold: Path) -> None:
    body = {"prompt": "a", "max_tokens": 99, "ignore_eos": True, "return_token_ids": True, "n": 2}
    with running_server(checkpoint, "--device", f"hold:{hold}") as held:
        for timeout_s in (1, 2, 4, 8, 16, 32, 64):  # a busy machine may have no token by the first
            answer = httpx.post(held.url + TEXT, json={**body, "timeout": timeout_s})
            if answer.status_code == 200:
                break
        hold.unlink()
        counts = [len(choice["token_ids"]) for choice in answer.json()["choices"]]
        assert 0 < max(counts) < 99
        for choice in answer.json()["choices"]:
            assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "timeout")
        whole = ask(held.url, **body, timeout=3600)["choices"][0]
        assert (len(whole["token_ids"]), whole["stop_reason"]) == (99, None)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"stream": True}], ids=str)
def test_a_timeout_before_any_output_is_an_error_that_is_not_tried_again(slow: Server, more: dict[str, Any]) -> None:
    answer = httpx.post(slow.url + TEXT, json={"prompt": "a", "max_tokens": 9, "timeout": 1e-4, **more})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (408, "timeout", "timeout")
    assert answer.headers["x-should-retry"] == "false"


def test_an_answer_says_how_long_it_took_where_the_server_does(slow: Server, server: Server) -> None:
    body = {"prompt": "a", "max_tokens": 5, "ignore_eos": True}
    times = ask(slow.url, **body)["metrics"]
    assert set(times) == TIMES
    assert times["generation_time_ms"] == pytest.approx(4 * times["mean_itl_ms"])
    chat = ask(slow.url, CHAT, messages=HELLO, max_tokens=5)
    assert set(chat["metrics"]) <= TIMES
    stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
    lines = httpx.post(slow.url + TEXT, json=stream).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert ["metrics" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert "metrics" not in ask(slow.url, **body, n=2)
    assert "metrics" not in ask(server.url, **body)


def test_a_load_balancer_gets_the_load_with_an_answer(server: Server) -> None:
    def report(form: str) -> str | None:
        body = {"prompt": "a", "max_tokens": 1}
        return httpx.post(server.url + TEXT, json=body, headers={"endpoint-load-metrics-format": form}).headers.get(
            "endpoint-load-metrics"
        )

    name, _, value = (report("JSON") or "").partition(" ")
    assert name == "JSON"
    assert set(json.loads(value)["named_metrics"]) == {"kv_cache_usage_perc", "num_requests_waiting"}
    assert (report("text") or "").startswith("TEXT named_metrics.kv_cache_usage_perc=")
    assert report("BIN") is None


@pytest.fixture(scope="module")
def filling(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The fake checkpoint with the fill-in-the-middle tokens of StarCoder, and a template that knows documents."""
    directory = tmp_path_factory.mktemp("filling") / "checkpoint"
    shutil.copytree(checkpoint, directory)
    tokenizer = (directory / "tokenizer.json").read_text()
    for old, new in MARKS.items():
        tokenizer = tokenizer.replace(old, new)
    (directory / "tokenizer.json").write_text(tokenizer)
    template = directory / "template.jinja"
    template.write_text(
        "{% for d in documents or [] %}{{ d.title }}={{ d.text }};{% endfor %}{{ messages[0].content }}"
    )
    with running_server(directory, "--chat-template", str(template)) as running:
        yield running


@pytest.mark.slow
def test_a_suffix_stands_behind_what_is_generated(filling: Server) -> None:
    def ids(text: str) -> list[int]:
        tokens: list[int] = ask(filling.url, "/tokenize", prompt=text)["tokens"]
        return tokens

    body = {"max_tokens": 2, "return_token_ids": True, "suffix": "end"}
    choices = ask(filling.url, prompt=["begin", ""], **body)["choices"]
    prefix, suffix, middle = (ids(mark) for mark in ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"))
    assert choices[0]["prompt_token_ids"] == [*prefix, *ids("begin"), *suffix, *ids("end"), *middle]
    assert choices[1]["prompt_token_ids"] == [*prefix, *suffix, *ids("end"), *middle]
    refused = httpx.post(filling.url + TEXT, json={"prompt": [1], **body})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "suffix")


def test_documents_are_the_templates_business(filling: Server) -> None:
    documents = [{"title": "a", "text": "b"}, {"title": "c", "text": "d"}]
    answer = ask(filling.url, CHAT, messages=HELLO, documents=documents, max_tokens=1, return_token_ids=True)
    assert ask(filling.url, "/detokenize", tokens=answer["prompt_token_ids"])["prompt"] == "a=b;c=d;hi"


def chunks_of(server: Server, path: str, body: dict[str, Any]) -> list[bytes]:
    """The parts of an answer as they were framed for the connection."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port)) as connection, connection.makefile("rb") as answer:
        connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        assert answer.readline().split()[1] == b"200"
        while answer.readline().strip():
            pass
        chunks = []
        while size := int(answer.readline(), 16):
            chunks.append(answer.read(size))
            assert answer.readline() == b"\r\n"
        return chunks


@pytest.mark.parametrize("given", [{"stop": ["e"]}, {"logprobs": 1}, {}])
def test_streamed_choices_share_no_chunk_and_are_those_of_a_whole_answer(
    real_server: Server, given: dict[str, Any]
) -> None:
    body = {"prompt": "Once upon", "max_tokens": 24, "n": 3, "temperature": 1.0, "seed": 5, **given}
    *chunks, end = chunks_of(real_server, TEXT, {**body, "stream": True})
    assert end == b"data: [DONE]\n\n"
    texts, reasons = ["", "", ""], ["", "", ""]
    for chunk in chunks:
        event = chunk.removeprefix(b"data: ").removesuffix(b"\n\n")
        assert b"\n" not in event, "one event"
        (choice,) = json.loads(event)["choices"]
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]] += choice["finish_reason"] or ""
    whole = ask(real_server.url, **body)["choices"]
    assert texts == [each["text"] for each in whole]
    assert reasons == [each["finish_reason"] for each in whole]
