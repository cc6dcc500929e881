"""Streams whose replica is lost go on from another one and are what they would have been."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from neuronserve.server.api.http.resume import HEADER
from tests.api.serving import PATIENCE_S, Server, running_server, until
from tests.route.routers import metric, running_router

SLOW = ("--device", "slow:0.01", "--max-num-seqs", "64")
CHAT: dict[str, Any] = {
    "model": "fake",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 60,
    "stream": True,
    "ignore_eos": True,
}
USAGE = {"stream_options": {"include_usage": True}}
RESPONSE = {"model": "fake", "input": "hi", "max_output_tokens": 50, "stream": True, "ignore_eos": True}
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT | {"temperature": 0} | USAGE),
    ("/v1/chat/completions", CHAT | {"seed": 5, "n": 2} | USAGE),
    ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 3, "return_token_ids": True}),
    ("/v1/chat/completions", CHAT | {"ignore_eos": False, "max_tokens": 300, "stop": ["zq", "&-"]}),
    ("/v1/completions", {"model": "fake", "prompt": ["a", "bc"], "max_tokens": 60, "stream": True, "logprobs": 2}),
    ("/v1/messages", {"model": "fake", "messages": CHAT["messages"], "max_tokens": 60, "stream": True}),
    ("/v1/responses", RESPONSE),
    ("/v1/responses", RESPONSE | {"include": ["message.output_text.logprobs"]}),
    ("/v1/chat/completions", CHAT | {"stream": False, "seed": 9}),
]
CHANGING = frozenset({"id", "created", "created_at", "completed_at", "item_id", "sequence_number", "expires_at"})


def merged(text: str) -> Any:
    """What a stream says, however its text was divided: texts by the path of their field, and all other values."""
    texts: dict[str, str] = {}
    lists: dict[str, list[Any]] = {}
    others: dict[str, Any] = {}
    for line in text.splitlines():
        found = re.fullmatch(r"(?:data: )?(\{.*\})", line)
        if found is not None:
            event = json.loads(found[1])
            index = str([choice["index"] for choice in event.get("choices") or ()])
            for path, value in leaves(event, str(event.get("type", "")) + index):
                if path.endswith(("content", "text", "delta")) and isinstance(value, str):
                    texts[path] = texts.get(path, "") + value
                elif isinstance(value, list):
                    lists.setdefault(path, []).extend(value)
                elif value is not None:
                    others[path] = value
    return texts, lists, others


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Fields of an object with their paths; lists are whole, but choices, which come one at a time."""
    if path.endswith(".choices") and value:
        [value] = value
    if isinstance(value, dict):
        for name, each in value.items():
            if name not in CHANGING:
                yield from leaves(each, f"{path}.{name}")
    else:
        yield path, without_ids(value)


def without_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [without_ids(each) for each in value]
    if isinstance(value, dict):
        return {name: without_ids(each) for name, each in value.items() if name not in CHANGING}
    return value


def ask(url: str, kind: int) -> tuple[int, str]:
    path, body = KINDS[kind % len(KINDS)]
    answer = httpx.post(url + path, json=body, timeout=PATIENCE_S)
    return answer.status_code, answer.text


class Pair:
    """Two replicas that start again when they are killed, and a router in front of them."""

    def __init__(self, model: Path, ports: list[int], *args: str) -> None:
        self._model, self._args, self._ports = model, args, ports
        self._stacks = [contextlib.ExitStack() for _ in ports]
        self.servers = [self._start(place) for place in range(len(ports))]

    def _start(self, place: int) -> Server:
        port = "--port", str(self._ports[place])
        return self._stacks[place].enter_context(running_server(self._model, *self._args, *port))

    def lose(self, place: int) -> None:
        """Kill a replica with its engine, and start it again at its port."""
        self.servers[place].process.kill()
        self.servers[place].wait()
        self._stacks[place].close()
        self.servers[place] = self._start(place)

    def close(self) -> None:
        for stack in self._stacks:
            stack.close()


@pytest.fixture
def pair(request: pytest.FixtureRequest, checkpoint: Path, free_ports: list[int]) -> Iterator[Pair]:
    found = Pair(checkpoint, free_ports[:2], *SLOW, "--stream-interval", getattr(request, "param", "1"))
    with contextlib.closing(found):
        yield found


@pytest.mark.parametrize("num_losses", [2, pytest.param(20, marks=pytest.mark.chaos)])
def test_64_streams_of_all_kinds_survive_replicas_that_are_killed_at_any_moment(pair: Pair, num_losses: int) -> None:
    chance = random.Random(num_losses)
    expected = [ask(pair.servers[0].url, kind) for kind in range(len(KINDS))]
    assert {status for status, _ in expected} == {200}
    with running_router(*(server.url for server in pair.servers)) as router, ThreadPoolExecutor(64) as pool:
        for number in range(num_losses):
            answers = [pool.submit(ask, router.url, kind) for kind in range(64)]
            time.sleep(chance.uniform(0.05, 1.5))
            pair.lose(number % 2)
            until(lambda: set(metric(router.url, "neuronserve_route_replica_up").values()) == {1})
            for kind, answer in enumerate(answers):
                check(answer, expected[kind % len(KINDS)][1])
        assert sum(metric(router.url, "neuronserve_route_lost_requests_total").values()) >= num_losses


def check(answer: Future[tuple[int, str]], expected: str) -> None:
    status, text = answer.result()
    assert status == 200, text[:500]
    assert merged(text) == merged(expected)
    numbers = [int(each) for each in re.findall(r'"sequence_number": ?(\d+)', text)]
    assert numbers == list(range(len(numbers)))
    for name in ("id", "created"):
        assert len(set(re.findall(rf'^data: \{{"{name}": ?("[^"]*"|\d+)', text, re.MULTILINE))) <= 1


@pytest.mark.parametrize("pair", ["3"], indirect=True)
def test_a_replica_that_falls_silent_is_lost_after_the_timeout(pair: Pair) -> None:
    expected = [ask(pair.servers[0].url, kind)[1] for kind in range(len(KINDS))]
    urls = [server.url for server in pair.servers]
    with running_router(*urls, "--silence-timeout", "0.5") as router, ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(ask, router.url, kind) for kind in range(16)]
        until(lambda: all(metric(router.url, "neuronserve_route_open_tokens").values()))
        pair.servers[0].signal(signal.SIGSTOP)
        try:
            for kind, answer in enumerate(answers):
                check(answer, expected[kind % len(KINDS)])
        finally:
            pair.servers[0].signal(signal.SIGCONT)
        until(lambda: set(metric(router.url, "neuronserve_route_replica_up").values()) == {1})


def test_a_stream_ends_with_an_error_event_when_no_replica_is_left(checkpoint: Path) -> None:
    with (
        running_server(checkpoint, *SLOW) as server,
        running_router(server.url, "--max-wait", "0.2") as router,
        httpx.stream("POST", f"{router.url}/v1/chat/completions", json=CHAT, timeout=PATIENCE_S) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        server.signal(signal.SIGKILL)
        last = [line for line in lines if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "no_replica"


ASKED = {"key": "0" * 32, "created": 7}


@pytest.mark.parametrize(
    ("asked", "journal", "status", "said"),
    [
        ({"key": "x", "created": 7}, b"", 400, "key"),
        (ASKED | {"num_journal_bytes": 2**40}, b"", 413, "journal"),
        (ASKED | {"num_journal_bytes": 9999}, b"", 400, "journal 9999"),
        (ASKED | {"fingerprint": "other"}, b"", 409, "other"),
        (ASKED, b"[[1,2]]\n", 400, "cannot be read"),
        (ASKED, b'[[["7",5,0,0.0],[0,false]]]\n', 400, "choice '7'"),
        (ASKED, b'[[["0",99999,0,0.0],[0,false]]]\n', 400, "out of vocabulary"),
        (ASKED, b'[[["0",-5,0,0.0],[0,false]]]\n', 400, "out of vocabulary"),
        (ASKED, b'[[["0",5,0,0.0],[0,false]]]\n' * 60, 400, "60 tokens"),
    ],
)
def test_wrong_journals_are_refused(
    fake_server: Server, asked: dict[str, Any], journal: bytes, status: int, said: str
) -> None:
    asked = {"num_journal_bytes": len(journal)} | asked
    headers = {HEADER.decode(): json.dumps(asked), "Content-Type": "application/json"}
    body = journal + json.dumps(CHAT).encode()
    answer = httpx.post(f"{fake_server.url}/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]["message"]


def test_what_a_router_sends_makes_the_same_answer_twice(fake_server: Server) -> None:
    headers = {HEADER.decode(): json.dumps(ASKED), "X-Request-Id": "mine"}
    answers = [
        httpx.post(
            f"{fake_server.url}/v1/responses", json=RESPONSE | {"stream": False, "store": False}, headers=headers
        )
        for _ in range(2)
    ]
    first, second = (json.loads(answer.text) | {"completed_at": 0} for answer in answers)
    assert first == second
    assert first["created_at"] == ASKED["created"]
