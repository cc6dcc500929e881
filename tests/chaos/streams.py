"""Sixty-four open streams of every kind, a batch beside them, and their clients' answers."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import openai

from tests.api.serving import PATIENCE_S, Server
from tests.api.test_batches import CHAT, create, ended, results

NUM_STREAMS = 64
NUM_LINES = 16
MAX_NUM_SEQS = 80  # places for the streams, the second choices of some of them, and lines of the batch
ADAPTER = "tales"
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
    "lora": {"model": ADAPTER, "temperature": 0.8, "seed": 17, "ignore_eos": True},
}


@dataclass
class Answer:
    """One client's answer: the deltas of each choice put together, and the times of the frames."""

    text: dict[int, str] = field(default_factory=dict)
    calls: dict[tuple[int, int], str] = field(default_factory=dict)
    logprobs: dict[int, list[Any]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    usage: tuple[int, int] | None = None
    errors: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    cuts: list[float] = field(default_factory=list)  # when its connection was cut, after which it was asked for again
    is_over: bool = False

    def begin_again(self) -> None:
        """Drop the answer of a connection that has been cut."""
        self.cuts.append(time.monotonic())
        for each in (self.text, self.calls, self.logprobs, self.reasons):
            each.clear()  # type: ignore[attr-defined]

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


def body_of(number: int, max_tokens: int) -> dict[str, Any]:
    """The request of a stream or of a line of the batch; neighbours are of different kinds."""
    kind = list(KINDS)[number % len(KINDS)]
    text = f"Tell me story {number} about a {('fox', 'ship', 'lamp')[number % 3]}."
    return {"model": "fake", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, **KINDS[kind]}


async def ask(client: httpx.AsyncClient, body: dict[str, Any], answer: Answer) -> None:
    """Ask for a stream, and again when its connection is cut, as clients' libraries do."""
    while not answer.is_over:
        try:
            async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    answer.errors.append((response.status_code, await response.aread()))
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        answer.take(json.loads(line.removeprefix("data: ")))
            answer.is_over = True
        except (httpx.NetworkError, httpx.RemoteProtocolError):
            answer.begin_again()


Disturbance = Callable[[list[Answer], asyncio.Future[Any]], Awaitable[None]]


def bodies_of(max_tokens: int) -> list[dict[str, Any]]:
    """The requests of all streams."""
    return [body_of(i, max_tokens) for i in range(NUM_STREAMS)]


async def serve_all(
    server: Server, bodies: Iterable[dict[str, Any]], disturb: Disturbance | None = None
) -> list[Answer]:
    """The answers to all requests, as streams, while `disturb` goes on beside them."""
    limits, streamed = httpx.Limits(max_connections=None), {"stream": True, "stream_options": {"include_usage": True}}
    async with httpx.AsyncClient(base_url=server.url, timeout=5 * PATIENCE_S, limits=limits) as client:
        answers, asking = list[Answer](), list[Coroutine[Any, Any, None]]()
        for body in bodies:
            answers.append(Answer())
            asking.append(ask(client, body | streamed, answers[-1]))
        whole = asyncio.gather(*asking)
        if disturb is not None:
            await disturb(answers, whole)
        await whole
    return answers


def batch_of(client: openai.OpenAI, max_tokens: int) -> str:
    """Submit a batch with lines of every kind, and return its id."""
    lines = [
        {"custom_id": str(i), "method": "POST", "url": CHAT, "body": body_of(i, max_tokens)} for i in range(NUM_LINES)
    ]
    batch_id: str = create(client, lines).id
    return batch_id


def batch_answers(client: openai.OpenAI, batch_id: str) -> dict[str, Any]:
    """Answer of each line, once all have one, without the parts that name the line."""
    batch = ended(client, batch_id)
    assert batch.request_counts.to_dict() == {"total": NUM_LINES, "completed": NUM_LINES, "failed": 0}
    return {
        name: [{**choice, "message": _without_ids(choice["message"])} for choice in line["response"]["body"]["choices"]]
        for name, line in results(client, batch.output_file_id).items()
    }


def _without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls") or ()
    return {**message, "tool_calls": [call["function"] for call in calls]}


def pauses(answers: list[Answer], strikes: list[tuple[float, float]]) -> list[float]:
    """Seconds of the longest wait for a frame from each end of an engine to the next strike, of each stream open then.

    `strikes` are the times of each strike and of the end: until an engine that errs, or that the kernel is about to
    kill for its memory, has ended, it serves. The first frame after it may have been under way already.
    """
    found = []
    for (struck, over), until in zip(strikes, [*(struck for struck, _ in strikes[1:]), math.inf], strict=True):
        for answer in answers:
            before, later = [t for t in answer.times if t <= over], [t for t in answer.times if over < t <= until]
            if later and before and before[0] < struck:
                found.append(max(b - a for a, b in pairwise([before[-1], *later])))
    return found
