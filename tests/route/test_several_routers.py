"""Several routers of the same replicas: none needs another, and together they spread requests as one does."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from benchmarks.routers import Deployment, conversations, served
from tests.api.serving import Server, until
from tests.route.routers import metric, replicas, running_router
from tests.route.test_resume import KINDS, SLOW, ask, check

TALK = conversations(60, 4, rate=4.0)


def test_replicas_find_the_prefixes_that_one_server_finds_and_share_the_load() -> None:
    one, four = (asyncio.run(served(Deployment(TALK.at_speed(count / 4), count))) for count in (1, 4))
    assert four.hit_rate >= 0.9 * one.hit_rate
    assert four.spread <= 1.3


def test_16_routers_do_not_all_choose_the_same_replica() -> None:
    assert asyncio.run(served(Deployment(TALK, 4, 16))).spread <= 1.3


@pytest.fixture(scope="module")
def servers(checkpoint: Path) -> Iterator[Sequence[Server]]:
    with replicas(checkpoint, 2, *SLOW) as running:
        yield running


def test_a_router_that_is_killed_is_not_noticed_by_clients_of_others_and_its_own_are_cut(
    servers: Sequence[Server],
) -> None:
    expected = [ask(servers[0].url, kind)[1] for kind in range(len(KINDS))]
    urls = [server.url for server in servers]
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(32) as pool:
        routers = [stack.enter_context(running_router(*urls)) for _ in range(3)]
        answers = [[pool.submit(ask, each.url, kind) for kind in range(10)] for each in routers]
        until(lambda: all(all(metric(each.url, "neuronserve_route_open_tokens").values()) for each in routers))
        routers[0].signal(signal.SIGKILL)
        cut = [each for each in answers[0] if each.exception() is not None]  # never an answer that looks whole
        assert cut
        assert all(isinstance(each.exception(), httpx.TransportError) for each in cut)
        for others in answers[1:]:
            for kind, answer in enumerate(others):
                check(answer, expected[kind % len(KINDS)])
        check(pool.submit(ask, routers[1].url, 0), expected[0])  # as the client of the first may do now
        until(lambda: all(map(is_idle, urls)))


def is_idle(url: str) -> bool:
    return bool(re.search(r"^vllm:num_requests_running\{.*\} 0\.0$", httpx.get(f"{url}/metrics").text, re.MULTILINE))
