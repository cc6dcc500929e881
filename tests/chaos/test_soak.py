"""A server at 90 % load for minutes: clients that leave, requests that are wrong, and an engine that is killed.

`make soak` takes ten minutes and prints what memory did; the form of `make test-all` takes one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
import time
from collections import Counter
from statistics import median
from typing import Any

import httpx
import psutil
import pytest

from neuronserve.server.host.memory import written_bytes
from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.bad_requests import CHAT, GENERATION, HELLO
from tests.api.serving import PATIENCE_S, Server, running_server, until
from tests.chaos.streams import Answer, body_of

MAX_NUM_SEQS = 20
CLIENTS = 16  # who always ask: with second choices 90 % of the places
NUM_BODIES = 24  # different requests; each must always get the same answer
MOST_GROWTH = 0.02  # of resident memory after the first minute, in the long form
MIB = 2**20
GROWN_UP_S = 30.0  # age at which an engine can be told from other processes, on a busy host too


class Soak:
    """The load, and its outcomes."""

    def __init__(self, server: Server, seconds: float, kill_every_s: float) -> None:
        self._server, self._kill_every_s = server, kill_every_s
        self._chance, self._turns = random.Random(7), itertools.count()
        self._end = time.monotonic() + seconds
        self.outcomes: Counter[str] = Counter()
        self.answers: dict[int, set[str]] = {}
        self.unexpected: list[Any] = []
        self.num_kills = 0
        self.api_bytes: list[int] = []  # of all processes but engines, once in ten seconds

    async def run(self) -> None:
        """Send requests until the time is over, and wait for the open ones."""
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._server.url, timeout=5 * PATIENCE_S, limits=limits) as client:
            clients = [self._ask_again(client) for _ in range(CLIENTS)]
            await asyncio.gather(self._kill(), self._watch(), *clients)

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._end

    async def _ask_again(self, client: httpx.AsyncClient) -> None:
        while not self._is_over:
            turn = next(self._turns) % 20
            if turn == 0:
                await self._ask_wrongly(client)
            else:
                await self._ask(client, self._chance.randrange(NUM_BODIES), leaves=turn <= 4)

    async def _ask_wrongly(self, client: httpx.AsyncClient) -> None:
        mistake, param = self._chance.choice(GENERATION)
        answer = await client.post(CHAT, json={"model": "fake", "messages": HELLO, "max_tokens": 4} | mistake)
        self.outcomes["refused"] += 1
        if (answer.status_code, answer.json().get("error", {}).get("param")) not in {(400, param), (404, param)}:
            self.unexpected.append((mistake, answer.status_code, answer.text[:300]))

    async def _ask(self, client: httpx.AsyncClient, number: int, leaves: bool) -> None:
        body = body_of(number, 40 + 5 * number) | {"model": "fake", "stream": True}
        answer, num_frames = Answer(), 0
        async with client.stream("POST", CHAT, json=body) as response:
            if response.status_code != 200:
                self.unexpected.append((response.status_code, await response.aread()))
                return
            leave_after = self._chance.randrange(1, 40) if leaves else None
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    answer.take(json.loads(line.removeprefix("data: ")))
                    num_frames += 1
                if num_frames == leave_after:
                    self.outcomes["left"] += 1
                    return
        self.outcomes["answered"] += 1
        self.unexpected += answer.errors
        self.answers.setdefault(number, set()).add(repr(answer.content))

    async def _kill(self) -> None:
        while not self._is_over:
            await asyncio.sleep(min(self._kill_every_s, max(0.0, self._end - time.monotonic())))
            if not self._is_over and (pids := self._server.engine_pids):
                os.kill(pids[0], signal.SIGKILL)
                self.num_kills += 1

    async def _watch(self) -> None:
        while not self._is_over:
            await asyncio.sleep(10)
            self.api_bytes.append(await asyncio.to_thread(bytes_beside_engines, self._server))


def bytes_beside_engines(server: Server) -> int:
    """Memory that all other processes have written. One that has just begun may be an engine, and does not count."""
    server_process, engines = psutil.Process(server.process.pid), set(server.engine_pids)
    others = [server_process.pid]
    for each in server_process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if each.pid not in engines and time.time() - each.create_time() > GROWN_UP_S:
                others.append(each.pid)
    return sum(map(written_bytes, others))


def num_used_blocks(server: Server) -> float:
    page = httpx.get(server.url + "/metrics").text
    found = re.search(r'^neuronserve:kv_cache_blocks\{.*state="used"\} (\S+)$', page, re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize(
    ("seconds", "kill_every_s"),
    [
        pytest.param(60, 15, marks=pytest.mark.thorough, id="short"),
        pytest.param(600, 60, marks=pytest.mark.chaos, id="long"),
    ],
)
def test_a_server_under_load_keeps_its_memory_its_blocks_and_its_answers(
    kernel_cache: str, seconds: float, kill_every_s: float
) -> None:
    options = ("--max-num-seqs", str(MAX_NUM_SEQS), "--disable-access-log", "--kernel-cache-dir", kernel_cache)
    with running_server(DEFAULT_MODEL, *options, program="neuronserve") as server:
        soak = Soak(server, seconds, kill_every_s)
        asyncio.run(soak.run())
        until(lambda: num_used_blocks(server) == 0)
        assert httpx.get(server.url + "/health/ready").status_code == 200
    after_a_minute = soak.api_bytes[min(6, len(soak.api_bytes) - 1) :]
    first, last = median(after_a_minute[:6]), median(after_a_minute[-6:])  # of a minute each
    print(f"\n{dict(soak.outcomes)}, {soak.num_kills} kills; memory beside the engine, every 10 s in MiB:", end="")
    print("".join(f" {each / MIB:.0f}" for each in soak.api_bytes), f"({last / first - 1:+.1%} after the first minute)")
    assert soak.unexpected == []
    assert min(soak.outcomes[kind] for kind in ("answered", "left", "refused")) > 0
    assert soak.num_kills > 0
    assert {number: len(answers) for number, answers in soak.answers.items() if len(answers) > 1} == {}
    if seconds >= 600:
        assert last / first - 1 <= MOST_GROWTH
