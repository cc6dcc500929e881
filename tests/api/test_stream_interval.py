"""Parts of streams by number of tokens (`--stream-interval`), and writes that carry several steps' events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from neuronserve.server.api.http.event_stream import ShortWay
from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.bad_requests import CHAT, HELLO, TEXT
from tests.api.serving import Server, running_server, until
from tests.api.test_choices import ask, chunks_of
from tests.api.test_tools import OSLO, TOOLS

INTERVAL = 4
STORY = {"prompt": "Once upon", "temperature": 1.0, "seed": 5, "ignore_eos": True}
Parts = list[dict[str, Any]]


@pytest.fixture(scope="module")
def spaced(kernel_cache: str) -> Iterator[Server]:
    options = ("--stream-interval", str(INTERVAL), "--kernel-cache-dir", kernel_cache)
    with running_server(DEFAULT_MODEL, *options, program="neuronserve") as running:
        yield running


def events_of(server: Server, path: str, body: dict[str, Any]) -> Parts:
    """The events of a stream, each of which is one chunk of HTTP."""
    *chunks, end = chunks_of(server, path, {**body, "stream": True})
    assert end == b"data: [DONE]\n\n"
    return [json.loads(chunk.removeprefix(b"data: ").removesuffix(b"\n\n")) for chunk in chunks]


def choices_of(events: Parts, index: int = 0) -> Parts:
    return [choice for event in events for choice in event["choices"] if choice["index"] == index]


@pytest.mark.parametrize("count", [1, 2, 5, 14])
def test_the_first_token_comes_alone_and_then_each_interval(spaced: Server, count: int) -> None:
    body: dict[str, Any] = {**STORY, "max_tokens": count, "n": 2, "return_token_ids": True, "logprobs": 1}
    usage = {"include_usage": True, "continuous_usage_stats": True}
    full, rest = divmod(count - 1, INTERVAL)
    expected = [1] + [INTERVAL] * full + [rest] * bool(rest)

    def streamed() -> Parts:
        return events_of(spaced, TEXT, {**body, "stream_options": usage})

    def lengths(events: Parts, index: int) -> list[int]:
        return [len(part["token_ids"]) for part in choices_of(events, index)]

    # Tokens that a busy machine brings at once share a part.
    until(lambda: all(lengths(events, index) == expected for events in [streamed()] for index in range(2)))
    events = streamed()
    whole = ask(spaced.url, **body)
    for index in range(2):
        parts = choices_of(events, index)
        assert len(parts) <= len(expected)
        assert sum(lengths(events, index)) == count
        assert [len(part["logprobs"]["tokens"]) for part in parts] == lengths(events, index)
        assert "".join(part["text"] for part in parts) == whole["choices"][index]["text"]
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + ["length"]
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 2 * count


@pytest.mark.parametrize("given", [{"stop": ["e"]}, {"stop": ["the"], "include_stop_str_in_output": True}], ids=str)
def test_an_end_waits_for_no_interval(spaced: Server, given: dict[str, Any]) -> None:
    body = {**STORY, "max_tokens": 99, **given}
    parts, (whole,) = choices_of(events_of(spaced, TEXT, body)), ask(spaced.url, **body)["choices"]
    ends = {name: parts[-1][name] for name in ("finish_reason", "stop_reason")}
    assert ends == {name: whole[name] for name in ends} == {"finish_reason": "stop", "stop_reason": given["stop"][0]}
    assert "".join(part["text"] for part in parts) == whole["text"]


def test_calls_are_those_of_a_whole_answer(spaced: Server) -> None:
    body = {"messages": OSLO, "tools": TOOLS, "temperature": 0, "max_tokens": 200}
    (whole,) = ask(spaced.url, CHAT, **body)["choices"]
    parts = choices_of(events_of(spaced, CHAT, body))
    called = [call["function"] for part in parts for call in part["delta"].get("tool_calls") or ()]
    (call,) = whole["message"]["tool_calls"]
    assert called[0]["name"] == call["function"]["name"]
    assert "".join(each["arguments"] for each in called) == call["function"]["arguments"]
    assert parts[-1]["finish_reason"] == whole["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HELLO}),
        (TEXT, {"prompt": "Once upon"}),
        ("/api/generate", {"model": DEFAULT_MODEL.name, "prompt": "Once upon"}),
    ],
    ids=["chat", "completions", "ollama"],
)
def test_streams_beside_each_other_are_what_they_are_alone(real_server: Server, path: str, body: Any) -> None:
    name = httpx.get(f"{real_server.url}/v1/models").json()["data"][0]["id"]
    options = {"temperature": 1.0, "seed": 3, "num_predict": 60}
    body = body | {"model": name, "max_tokens": 60, "ignore_eos": True, "options": options, "stream": True, **options}
    with ThreadPoolExecutor(8) as pool:
        beside = list(pool.map(lambda _: shown(chunks_of(real_server, path, body)), range(8)))
    assert beside == [shown(chunks_of(real_server, path, body))] * 8
    assert len(beside[0]) > 40


def shown(chunks: list[bytes]) -> str:
    """The text of a stream, each of whose events is one chunk of HTTP."""
    assert all(chunk.count(b"\n") == 2 * chunk.startswith(b"data: ") or chunk.count(b"\n") == 1 for chunk in chunks)
    lines = [chunk.removeprefix(b"data: ").strip() for chunk in chunks]
    events = [json.loads(line) for line in lines if line.startswith(b"{")]
    choices = [event.get("choices", [event])[0] for event in events]
    texts = [each.get("text") or each.get("response") or each.get("delta", {}).get("content") for each in choices]
    return "".join(text or "" for text in texts)


class Client:
    """The writes to one client."""

    def __init__(self) -> None:
        self.writes: list[list[bytes]] = []

    def is_ready(self) -> bool:
        return True

    def write(self, parts: Sequence[bytes]) -> None:
        self.writes.append([*parts])


async def test_what_one_turn_of_the_event_loop_brings_leaves_in_one_write() -> None:
    clients = [Client() for _ in range(3)]
    ways = [ShortWay() for _ in clients]
    for way, client in zip(ways, clients, strict=True):
        way.open(client)
    for step in (b"1", b"2"):
        for way in ways:
            way.write_soon([step])
    await asyncio.sleep(0)
    ways[0].write_soon([b"3"])
    ways[0].write([b"4"])  # the last ones
    ways[1].write_soon([b"3"])
    ways[1].open(None)
    await asyncio.sleep(0)
    rest = [[[b"3", b"4"]], [[b"3"]], []]
    assert [client.writes for client in clients] == [[[b"1", b"2"], *more] for more in rest]
