"""Three times as many requests as the shipped model's server can answer: what those get who are taken.

`make overload` finds the capacity, offers three times that for a minute, and prints both beside the goals. Nothing of
time is asserted: a client without a CPU of its own measures how long it waits for one, and sends its requests late.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from server.settings.model import DEFAULT_MODEL
from tests.api.serving import PATIENCE_S, running_server

TEXT = "/v1/completions"
MAX_NUM_SEQS = 16
TTFT_LIMIT_S = 2.0
OVERLOAD = 3
CAPACITY_S, OVERLOAD_S = 20.0, 60.0
GOAL = "goal: p99 <= 1.5 of the limit, goodput >= 95 %, no 5xx"


@dataclass
class Tally:
    """What requests came to, from their first on."""

    begin: float = field(default_factory=time.monotonic)
    end: float = 0.0  # of the last that was taken
    ttfts: list[float] = field(default_factory=list)  # of those taken
    num_tokens: int = 0
    lates: list[float] = field(default_factory=list)  # seconds by which each was sent too late: the client's own doing
    statuses: dict[int, int] = field(default_factory=dict)
    wrong: list[Any] = field(default_factory=list)

    @property
    def requests_per_s(self) -> float:
        return len(self.ttfts) / (self.end - self.begin)

    @property
    def goodput(self) -> float:
        """Tokens per second of those whose first came within the limit."""
        in_time = sum(ttft <= TTFT_LIMIT_S for ttft in self.ttfts) / max(1, len(self.ttfts))
        return in_time * self.num_tokens / (self.end - self.begin)

    @property
    def p99_s(self) -> float:
        return p99(self.ttfts)


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]


async def ask(client: httpx.AsyncClient, number: int, tally: Tally) -> None:
    """One request, whose prompt is nobody else's."""
    prompt = f"{number} stories about foxes, ships and lamps: " * 6
    body = {"prompt": prompt, "max_tokens": 32, "ignore_eos": True, "stream": True, "temperature": 0.7, "seed": number}
    begin, num_tokens = time.monotonic(), 0
    async with client.stream("POST", TEXT, json=body) as answer:
        tally.statuses[answer.status_code] = tally.statuses.get(answer.status_code, 0) + 1
        if answer.status_code != 200:
            error = json.loads(await answer.aread())["error"]
            if (answer.status_code, error["code"]) != (429, "overloaded") or int(answer.headers["retry-after"]) < 1:
                tally.wrong.append((answer.status_code, error))
            return
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                if "error" in json.loads(line.removeprefix("data: ")):
                    tally.wrong.append(line)
                num_tokens += 1
                if num_tokens == 1:
                    tally.ttfts.append(time.monotonic() - begin)
    tally.num_tokens += num_tokens
    tally.end = time.monotonic()


async def at_capacity(client: httpx.AsyncClient) -> Tally:
    """As many clients as there are places, each with one request after the other."""
    tally, numbers = Tally(), iter(range(10**6))

    async def again() -> None:
        while time.monotonic() < tally.begin + CAPACITY_S:
            await ask(client, next(numbers), tally)

    await asyncio.gather(*(again() for _ in range(MAX_NUM_SEQS)))
    return tally


async def beyond_capacity(client: httpx.AsyncClient, rate: float) -> Tally:
    """Poisson arrivals, whatever becomes of them."""
    chance, tally, asking = random.Random(3), Tally(), list[asyncio.Task[None]]()
    at = tally.begin
    while at < tally.begin + OVERLOAD_S:
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        tally.lates.append(time.monotonic() - at)
        asking.append(asyncio.create_task(ask(client, 10**6 + len(asking), tally)))
        at += chance.expovariate(rate)
    await asyncio.gather(*asking)
    return tally


async def both(url: str) -> tuple[Tally, Tally]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=5 * PATIENCE_S, limits=limits) as client:
        calm = await at_capacity(client)
        return calm, await beyond_capacity(client, OVERLOAD * calm.requests_per_s)


@pytest.mark.chaos
def test_three_times_its_capacity_is_refused_or_served(kernel_cache: str) -> None:
    limits = ("--max-num-seqs", str(MAX_NUM_SEQS), "--ttft-slo-ms", str(int(TTFT_LIMIT_S * 1000)))
    options = (*limits, "--disable-access-log", "--kernel-cache-dir", kernel_cache)
    with running_server(DEFAULT_MODEL, *options, program="server") as server:
        calm, flooded = asyncio.run(both(server.url))
    print(f"\nat capacity {calm.requests_per_s:.1f} requests/s, {calm.goodput:.0f} tokens/s in time; ", end="")
    print(f"offered {OVERLOAD} times that: {flooded.statuses}, {flooded.goodput:.0f} tokens/s in time ", end="")
    print(f"({flooded.goodput / calm.goodput:.0%}), p99 of the first token {flooded.p99_s:.2f} s ", end="")
    print(f"({flooded.p99_s / TTFT_LIMIT_S:.2f} of the limit), sent up to {p99(flooded.lates):.2f} s late. {GOAL}")
    assert calm.wrong + flooded.wrong == []
    assert set(calm.statuses) <= {200, 429}
    assert set(flooded.statuses) == {200, 429}
