"""A load of requests at given times, over HTTP, and their outcomes. Reports how late its own requests were."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from tests.api.serving import PATIENCE_S

TEXT = "/v1/completions"
VOCAB = 2000  # ids below are words of the shipped model
LATE_S = 0.1  # a client whose p99 is later has measured itself


@dataclass(frozen=True)
class Planned:
    """One request: its time, its body, and the behaviour of its client."""

    at_s: float
    num_prompt: int
    max_tokens: int
    kind: str = ""  # by which it is counted
    fields: dict[str, Any] = field(default_factory=dict)  # of its body, beside those
    headers: dict[str, str] = field(default_factory=dict)
    leaves_after_s: float | None = None
    num_tries: int = 1  # comes back so often, when it was told to


@dataclass
class Fate:
    """Outcome of one request."""

    planned: Planned
    late_s: float = 0.0  # that it was sent after its time: the client's own doing
    retry_afters: list[int] = field(default_factory=list)
    status: int = 0  # of the last try; 0 = its client has left before
    ttft_s: float | None = None
    num_tokens: int = 0
    wrong: str = ""


class Load:
    """Sends requests to a server. Prompts are ids that no other request has."""

    def __init__(self, client: httpx.AsyncClient, seed: int) -> None:
        self._client, self._chance = client, Random(seed)
        self.fates: list[Fate] = []
        self.begin, self.end = time.monotonic(), 0.0  # end: of the last that was taken

    async def closed(self, plan: Callable[[], Planned], num_clients: int, seconds: float) -> None:
        """So many clients, each with one request after the other."""

        async def again() -> None:
            while time.monotonic() < self.begin + seconds:
                await self._ask(Fate(plan()))

        await asyncio.gather(*(again() for _ in range(num_clients)))

    async def open(self, planned: Iterable[Planned]) -> None:
        """Send each request at its time, independently of the others."""
        asking = []
        for each in planned:
            at = self.begin + each.at_s
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            asking.append(asyncio.create_task(self._ask(Fate(each, time.monotonic() - at))))
        await asyncio.gather(*asking)

    async def _ask(self, fate: Fate) -> None:
        self.fates.append(fate)
        planned = fate.planned
        body = {
            "prompt": self._chance.choices(range(3, VOCAB), k=planned.num_prompt),
            "max_tokens": planned.max_tokens,
            "ignore_eos": True,
            "stream": True,
            **planned.fields,
        }
        while len(fate.retry_afters) < planned.num_tries:
            try:
                async with asyncio.timeout(planned.leaves_after_s):
                    await self._try(fate, body)
            except TimeoutError:
                return
            if fate.status != 429:
                return
            if len(fate.retry_afters) < planned.num_tries:
                await asyncio.sleep(fate.retry_afters[-1])

    async def _try(self, fate: Fate, body: dict[str, Any]) -> None:
        begin = time.monotonic()
        async with self._client.stream("POST", TEXT, json=body, headers=fate.planned.headers) as answer:
            fate.status = answer.status_code
            if answer.status_code != 200:
                error = json.loads(await answer.aread())["error"]
                fate.retry_afters.append(int(answer.headers.get("retry-after", 0)))
                if (fate.status, error["code"]) != (429, "overloaded") or fate.retry_afters[-1] < 1:
                    fate.wrong = f"{fate.status} {error}"
                return
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    fate.num_tokens += 1
                    fate.ttft_s = fate.ttft_s or time.monotonic() - begin
                    if '"error"' in line:
                        fate.wrong = line
            self.end = max(self.end, time.monotonic())

    @property
    def taken(self) -> list[Fate]:
        return [fate for fate in self.fates if fate.status == 200]

    @property
    def requests_per_s(self) -> float:
        return len(self.taken) / (self.end - self.begin)

    def goodput(self, limit_s: float, kind: str | None = None) -> float:
        """Return tokens per second of the requests whose first token came within the limit."""
        in_time = (fate for fate in self.taken if fate.ttft_s is not None and fate.ttft_s <= limit_s)
        return sum(fate.num_tokens for fate in in_time if kind in {None, fate.planned.kind}) / (self.end - self.begin)

    @property
    def wrong(self) -> list[str]:
        return [fate.wrong for fate in self.fates if fate.wrong]

    @property
    def late_s(self) -> float:
        return p99([fate.late_s for fate in self.fates])


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)] if seconds else 0.0


def connected(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=5 * PATIENCE_S, limits=httpx.Limits(max_connections=None))
