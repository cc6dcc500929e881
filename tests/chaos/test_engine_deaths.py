"""Sixty-four streams of every kind while the engine is killed again and again: nobody may notice but by a pause.

`make chaos` runs all of it and prints how long the pauses were; otherwise one short form runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from server.settings.model import DEFAULT_MODEL
from tests.api.serving import PATIENCE_S, Server, running_server

NUM_STREAMS = 64
FLAGS = ("--max-engine-restarts", "1000", "--engine-hang-timeout", "1", "--max-num-seqs", "64")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 200},
        "age": {"type": "integer"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "ignore_eos": True},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 7, "ignore_eos": True},
    "penalised": {"temperature": 0.7, "seed": 3, "frequency_penalty": 0.5, "presence_penalty": 0.2, "ignore_eos": True},
    "tools": {"temperature": 0.8, "seed": 5, "tools": [TOOL], "tool_choice": "required"},
    "schema": {
        "temperature": 0.8,
        "seed": 11,
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}},
    },
    "n": {"temperature": 0.8, "seed": 13, "n": 2, "ignore_eos": True},
    "logprobs": {"temperature": 0, "logprobs": True, "top_logprobs": 3, "ignore_eos": True},
}


@dataclass
class Answer:
    """What one client got: the deltas of each choice put together, and when frames came."""

    text: dict[int, str] = field(default_factory=dict)
    calls: dict[tuple[int, int], str] = field(default_factory=dict)
    logprobs: dict[int, list[Any]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    usage: tuple[int, int] | None = None
    errors: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def take(self, chunk: dict[str, Any]) -> None:
        self.times.append(time.monotonic())
        if "error" in chunk:
            self.errors.append(chunk["error"])
        if chunk.get("usage"):
            self.usage = chunk["usage"]["prompt_tokens"], chunk["usage"]["completion_tokens"]
        for choice in chunk.get("choices", ()):
            self._take_choice(choice["index"], choice)

    def _take_choice(self, index: int, choice: dict[str, Any]) -> None:
        delta = choice["delta"]
        self.text[index] = self.text.get(index, "") + (delta.get("content") or "")
        for call in delta.get("tool_calls") or ():
            function, key = call["function"], (index, call["index"])
            self.calls[key] = self.calls.get(key, "") + (function.get("name") or "") + (function.get("arguments") or "")
        if choice.get("logprobs"):
            self.logprobs.setdefault(index, []).extend(choice["logprobs"]["content"])
        if choice.get("finish_reason"):
            self.reasons[index] = choice["finish_reason"]

    @property
    def content(self) -> tuple[Any, ...]:
        return self.text, self.calls, self.logprobs, self.reasons, self.usage, self.errors


def bodies(max_tokens: int) -> Iterator[dict[str, Any]]:
    for i in range(NUM_STREAMS):
        kind = list(KINDS)[i % len(KINDS)]
        message = {"role": "user", "content": f"Tell me story {i} about a {('fox', 'ship', 'lamp')[i % 3]}."}
        yield {
            "model": "fake",
            "messages": [message],
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **KINDS[kind],
        }


async def ask(client: httpx.AsyncClient, body: dict[str, Any], answer: Answer) -> None:
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            answer.errors.append((response.status_code, await response.aread()))
            return
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                answer.take(json.loads(line.removeprefix("data: ")))


async def serve_all(server: Server, max_tokens: int, strikes: Any = None) -> list[Answer]:
    """The answers to all bodies, while `strikes` goes on beside them."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S, limits=limits) as client:
        answers = [Answer() for _ in range(NUM_STREAMS)]
        asking = [ask(client, body, answer) for body, answer in zip(bodies(max_tokens), answers, strict=True)]
        whole = asyncio.gather(*asking)
        if strikes is not None:
            await strikes(answers, whole)
        await whole
    return answers


class Strikes:
    """Strikes the engine at random moments, each after the streams have gone on since the last one."""

    def __init__(self, server: Server, number: int, count: int) -> None:
        self._server, self._number, self._count = server, number, count
        self._chance = random.Random(number)
        self.times: list[float] = []

    async def __call__(self, answers: list[Answer], whole: asyncio.Future[Any]) -> None:
        while len(self.times) < self._count and not whole.done():
            seen = sum(len(answer.times) for answer in answers)
            while sum(len(answer.times) for answer in answers) < seen + NUM_STREAMS * 2 and not whole.done():
                await asyncio.sleep(0.01)
            await asyncio.sleep(self._chance.random() * 0.2)
            if not whole.done() and (pids := self._server.engine_pids):  # none while one follows another
                self.times.append(time.monotonic())
                os.kill(pids[0], self._number)


def pauses(answers: list[Answer], strikes: list[float]) -> list[float]:
    """Seconds from each strike to the next frame of each stream that was open then."""
    found = []
    for at in strikes:
        for answer in answers:
            later = [t for t in answer.times if t > at]
            if later and answer.times[0] < at:
                found.append(later[0] - at)
    return sorted(found)


CHAOS = pytest.mark.chaos


@pytest.mark.parametrize(
    ("number", "count", "max_tokens"),
    [
        pytest.param(signal.SIGKILL, 3, 250, id="short"),
        pytest.param(signal.SIGKILL, 20, 700, id="SIGKILL", marks=CHAOS),
        pytest.param(signal.SIGSEGV, 20, 700, id="SIGSEGV", marks=CHAOS),
        pytest.param(signal.SIGBUS, 20, 700, id="SIGBUS", marks=CHAOS),
        pytest.param(signal.SIGSTOP, 20, 700, id="SIGSTOP", marks=CHAOS),
    ],
)
def test_streams_are_those_of_an_undisturbed_run(kernel_cache: str, number: int, count: int, max_tokens: int) -> None:
    with running_server(DEFAULT_MODEL, "--kernel-cache-dir", kernel_cache, *FLAGS, program="server") as server:
        calm = asyncio.run(serve_all(server, max_tokens))
        strikes = Strikes(server, number, count)
        struck = asyncio.run(serve_all(server, max_tokens, strikes))
        metrics = httpx.get(server.url + "/metrics").text
    assert [error for answer in calm for error in answer.errors] == []
    assert strikes.times
    for i, (expected, got) in enumerate(zip(calm, struck, strict=True)):
        for name, want, have in zip(Answer.__annotations__, expected.content, got.content, strict=False):
            assert have == want, f"{name} of stream {i}"
    restarts = sum(float(line.split()[-1]) for line in metrics.splitlines() if "engine_restarts_total{" in line)
    assert restarts == len(strikes.times)
    found = pauses(struck, strikes.times)
    print(f"\n{len(found)} pauses after {len(strikes.times)} strikes: median {found[len(found) // 2]:.2f} s, ", end="")
    print(f"p99 {found[int(len(found) * 0.99)]:.2f} s, longest {found[-1]:.2f} s")
