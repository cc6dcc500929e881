"""Sixty-four streams of every kind while the engine dies again and again: nobody may notice but by a pause.

`make chaos` runs all of it and prints how long the pauses were; otherwise one short form runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import Server, is_running, running_server, until
from tests.api.test_responses import client_of
from tests.chaos.memory_group import memory_group
from tests.chaos.streams import (
    ADAPTER,
    MAX_NUM_SEQS,
    Answer,
    batch_answers,
    batch_of,
    bodies_of,
    body_of,
    pauses,
    serve_all,
)
from tests.route.routers import metric, replica_pids
from tools.random_checkpoint.adapter import adapter_tensors, write_adapter
from tools.random_checkpoint.writer import write_checkpoint

FLAGS = ("--max-engine-restarts", "1000", "--engine-hang-timeout", "1", "--max-num-seqs", str(MAX_NUM_SEQS))
REPLICAS = ("--replicas", "2")
KEPT = ("--kept-kv-cache-gib", "0.1")  # which the built-in model does without by itself
DRAFTS = ("--speculative-config", '{"method":"ngram","prompt_lookup_min":2}')
DRAFTER = {"method": "draft_model", "model": str(DEFAULT_MODEL), "num_speculative_tokens": 4}
DRAFT_MODEL = ("--speculative-config", json.dumps(DRAFTER))
CHAOS = pytest.mark.chaos
Strike = Callable[[int], None]  # at a process
Victim = Callable[[Server, int], int | None]  # of the strike of that number; None while it is not there


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("lora") / ADAPTER, adapter_tensors(DEFAULT_MODEL, 4))


def the_engine(server: Server, number: int) -> int | None:
    """The engine; there is none while one follows another."""
    del number
    return next(iter(server.engine_pids), None)


def a_replica(server: Server, number: int) -> int | None:
    """One of two replicas in turns, when both are up."""
    pids, are_up = replica_pids(server), metric(server.url, "neuronserve_route_replica_up")
    return pids[number % 2] if len(pids) == sum(are_up.values()) == 2 else None


class Strikes:
    """Strikes a process at random moments, each after every open stream has gone on since the last one.

    So each pause is of one death. Deaths of engines that have not recovered yet are in `tests/link/test_healing.py`.
    """

    def __init__(self, server: Server, strike: Strike, count: int, victim: Victim) -> None:
        self._server, self._strike, self._count, self._victim = server, strike, count, victim
        self._chance = random.Random(count)
        self.times: list[tuple[float, float]] = []  # of each strike, and of the process's end

    async def __call__(self, answers: list[Answer], whole: asyncio.Future[Any]) -> None:
        """Strike while these go on."""
        while not self.are_done and not whole.done():
            seen = [len(answer.times) for answer in answers]
            while not whole.done() and any(
                len(each.times) == n and not each.is_over for each, n in zip(answers, seen, strict=True)
            ):
                await asyncio.sleep(0.01)
            await asyncio.sleep(self._chance.random() * 0.5)
            if not whole.done() and (pid := self._victim(self._server, len(self.times))):
                struck = time.monotonic()
                await asyncio.to_thread(self._strike_dead, pid)
                self.times.append((struck, time.monotonic()))

    def _strike_dead(self, pid: int) -> None:
        """Strike, and wait until it has ended: frames that were under way are no sign of life."""
        self._strike(pid)
        until(lambda: not is_running(pid))

    @property
    def are_done(self) -> bool:
        return len(self.times) >= self._count


def by_signal(number: int) -> Callable[[], Any]:
    """Return a function that sends a signal to a server's engines, and the command to run the server under."""

    @contextlib.contextmanager
    def striking() -> Iterator[tuple[Strike, tuple[str, ...]]]:
        yield lambda pid: os.kill(pid, number), ()

    return striking


@contextlib.contextmanager
def by_memory() -> Iterator[tuple[Strike, tuple[str, ...]]]:
    """The same by a control group that runs out of memory."""
    with memory_group() as group:
        yield group.run_out, tuple(group.under)


@pytest.mark.parametrize(
    ("striking", "count", "more", "program"),
    [
        pytest.param(by_signal(signal.SIGKILL), 3, KEPT, "neuronserve", id="short"),
        pytest.param(by_signal(signal.SIGKILL), 3, DRAFTS, "neuronserve", id="drafts"),
        pytest.param(
            by_signal(signal.SIGKILL), 3, REPLICAS, "neuronserve", id="replicas, short", marks=pytest.mark.slow
        ),
        pytest.param(by_signal(signal.SIGKILL), 3, DRAFT_MODEL, "neuronserve", id="draft model"),
        pytest.param(by_signal(signal.SIGSEGV), 20, KEPT, "neuronserve", id="kept", marks=CHAOS),
        pytest.param(by_signal(signal.SIGKILL), 20, (), "neuronserve", id="SIGKILL", marks=CHAOS),
        pytest.param(by_signal(signal.SIGKILL), 20, ("--spare-engine",), "neuronserve", id="spare", marks=CHAOS),
        pytest.param(by_signal(signal.SIGKILL), 20, REPLICAS, "neuronserve", id="replicas", marks=CHAOS),
        pytest.param(by_signal(signal.SIGSEGV), 20, (), "neuronserve", id="SIGSEGV", marks=CHAOS),
        pytest.param(by_signal(signal.SIGBUS), 20, (), "neuronserve", id="SIGBUS", marks=CHAOS),
        pytest.param(by_signal(signal.SIGSTOP), 20, (), "neuronserve", id="SIGSTOP", marks=CHAOS),
        pytest.param(by_signal(signal.SIGUSR1), 20, (), "tests.chaos.serve_failing", id="exception", marks=CHAOS),
        pytest.param(by_memory, 20, (), "neuronserve", id="OOM", marks=CHAOS),
    ],
)
def test_streams_are_those_of_an_undisturbed_run(
    kernel_cache: str, adapter: Path, tmp_path: Path, striking: Any, count: int, more: tuple[str, ...], program: str
) -> None:
    options = (*FLAGS, *more, "--kernel-cache-dir", kernel_cache, "--data-dir", str(tmp_path))
    max_tokens = 250 if count < 20 else 700
    lora = ("--lora-modules", f"{ADAPTER}={adapter}", "--max-lora-rank", "8")
    with (
        striking() as (strike, under),
        running_server(DEFAULT_MODEL, *options, *lora, program=program, under=under) as server,
        client_of(server) as client,
    ):
        line_tokens = max_tokens // 2
        calm = asyncio.run(serve_all(server, bodies_of(max_tokens)))
        has_batch = more != REPLICAS  # a batch waits for its replica
        calm_lines = batch_answers(client, batch_of(client, line_tokens)) if has_batch else None
        victim = the_engine if has_batch else a_replica
        strikes, rounds = Strikes(server, strike, count, victim), list[list[Answer]]()
        batch_id = batch_of(client, line_tokens) if has_batch else ""
        while not strikes.are_done:
            rounds.append(asyncio.run(serve_all(server, bodies_of(max_tokens), strikes)))
        struck_lines = batch_answers(client, batch_id) if has_batch else None
        metrics = httpx.get(server.url + "/metrics").text
    assert [error for answer in calm for error in answer.errors] == []
    for struck in rounds:
        assert_same(calm, struck)
    assert struck_lines == calm_lines
    restarts = sum(float(line.split()[-1]) for line in metrics.splitlines() if "engine_restarts_total{" in line)
    assert striking is by_memory or restarts == count * has_batch  # the kernel may take a successor too
    assert restarts >= count * has_batch
    assert [cut for struck in rounds for answer in struck for cut in answer.cuts] == []
    print(f"\n{of_pauses(rounds, strikes)}")


@pytest.mark.chaos
@pytest.mark.parametrize("num_streams", [1, 16])
def test_a_larger_model_pauses_for_its_start(kernel_cache: str, tmp_path: Path, num_streams: int) -> None:
    """Half a billion parameters in int8: how long its pauses are beside its own warm start."""
    write_checkpoint("qwen-0.5b", tmp_path / "model")
    options = (*FLAGS, "--quantization", "int8", "--max-model-len", "1024", "--kernel-cache-dir", kernel_cache)
    bodies = [body_of(8 * i + i % 2, 200) for i in range(num_streams)]  # greedy and seeded
    with running_server(tmp_path / "model", *options, program="neuronserve"):
        pass  # so that the next start has its kernels
    begin = time.monotonic()
    with running_server(tmp_path / "model", *options, program="neuronserve") as server:
        start_s = time.monotonic() - begin
        calm = asyncio.run(serve_all(server, bodies))
        strikes, rounds = Strikes(server, lambda pid: os.kill(pid, signal.SIGKILL), 5, the_engine), list[list[Answer]]()
        while not strikes.are_done:
            rounds.append(asyncio.run(serve_all(server, bodies, strikes)))
    for struck in rounds:
        assert_same(calm, struck)
    print(f"\nwarm start {start_s:.2f} s; {of_pauses(rounds, strikes)}")


def of_pauses(rounds: list[list[Answer]], strikes: Strikes) -> str:
    """How many there were, and how long."""
    found = sorted(pause for struck in rounds for pause in pauses(struck, strikes.times))
    median, p99 = found[len(found) // 2], found[int(len(found) * 0.99)]
    load = f"{len(strikes.times)} strikes in {len(rounds)} rounds of {len(rounds[0])} streams"
    return f"{load}, {len(found)} pauses: median {median:.2f} s, p99 {p99:.2f} s, longest {found[-1]:.2f} s"


def assert_same(calm: list[Answer], struck: list[Answer]) -> None:
    for i, (expected, got) in enumerate(zip(calm, struck, strict=True)):
        for name, want, have in zip(Answer.__annotations__, expected.content, got.content, strict=False):
            assert have == want, f"{name} of stream {i}"
