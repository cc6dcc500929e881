"""`neuronserve pick` behind a real Envoy, in front of two servers."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.serving import Server, until
from tests.route.envoys import BINARY, DESTINATION, running_envoy
from tests.route.pickers import Picker, running_picker
from tests.route.routers import metric, replicas

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not BINARY.exists(), reason="`make test-slow` installs Envoy beside the other packages"),
]
OPEN, UP, REQUESTS = (f"neuronserve_route_{name}" for name in ("open_tokens", "replica_up", "requests_total"))
PATH = "/v1/chat/completions"


@contextlib.contextmanager
def gateway(servers: Sequence[Server], folder: Path, *args: str) -> Iterator[tuple[str, Picker]]:
    """Envoy's URL, and the picker that it asks over TLS."""
    urls = [server.url for server in servers]
    with running_picker(*urls, *args, is_secure=True) as picker:
        until(lambda: set(metric(picker.metrics_url, UP).values()) == {1})
        addresses = [url.partition("//")[2] for url in urls]
        with running_envoy(picker.server.url, addresses, folder) as (url, _):
            yield url, picker


@pytest.fixture(scope="module")
def servers(checkpoint: Path) -> Iterator[Sequence[Server]]:
    with replicas(checkpoint, 2, "--device", "slow:0.02") as running:
        yield running


@pytest.fixture(scope="module")
def served(servers: Sequence[Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Picker]]:
    with gateway(servers, tmp_path_factory.mktemp("envoy"), "--max-open-tokens", "600") as running:
        yield running


def chat(content: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": content}], "max_tokens": 12, "seed": 1, **more}


def loads(picker: Picker) -> list[float]:
    return list(metric(picker.metrics_url, OPEN).values())


def said(answer: httpx.Response) -> Any:
    if answer.headers["content-type"].startswith("text/event-stream"):
        return [line.partition('"choices"')[2] for line in answer.text.splitlines()]
    return answer.json()["choices"]


@pytest.mark.parametrize("is_stream", [False, True])
def test_answers_are_those_of_a_server_and_conversations_stay(
    servers: Sequence[Server], served: tuple[str, Picker], is_stream: bool
) -> None:
    url, picker = served
    before = metric(picker.metrics_url, REQUESTS)
    for turn in range(4):
        body = chat("a" * 600 + "b" * turn * 100, stream=is_stream, truncate_prompt_tokens=100)
        answers = [httpx.post(f"{each}{PATH}", json=body, timeout=60) for each in (url, servers[0].url)]
        assert said(answers[0]) == said(answers[1])
    after = metric(picker.metrics_url, REQUESTS)
    assert sorted(after[name] - before.get(name, 0) for name in after) == [0, 4]
    until(lambda: loads(picker) == [0, 0])


def test_large_bodies_pass_whole_and_streams_that_clients_leave_count_no_longer(
    servers: Sequence[Server], served: tuple[str, Picker]
) -> None:
    url, picker = served
    body = chat("".join(f"{i:7d}" for i in range(32_000)))
    answers = [httpx.post(f"{each}{PATH}", json=body, timeout=60).json() for each in (url, servers[0].url)]
    assert answers[0] == answers[1]
    assert "224040 characters" in answers[0]["error"]["message"]  # the whole prompt has arrived
    with httpx.stream("POST", f"{url}{PATH}", json=chat(stream=True, max_tokens=400, ignore_eos=True)) as answer:
        lines = answer.iter_lines()
        next(lines)
        least, most = sorted(loads(picker))
        assert least == 0 < most
    until(lambda: loads(picker) == [0, 0])


def test_a_burst_is_spread_and_what_is_too_much_is_shed(served: tuple[str, Picker]) -> None:
    url, picker = served
    before = metric(picker.metrics_url, REQUESTS)
    with ThreadPoolExecutor(8) as pool:
        body = {"ignore_eos": True, "max_tokens": 100}
        answers = list(pool.map(lambda i: httpx.post(f"{url}{PATH}", json=chat(f"{i}" * 100, **body)), range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8
    after = metric(picker.metrics_url, REQUESTS)
    assert sorted(after[name] - before[name] for name in after) == [4, 4]
    with contextlib.ExitStack() as stack:
        for i in range(2):
            body = chat(f"{i}" * 4000, stream=True, max_tokens=400, ignore_eos=True, truncate_prompt_tokens=100)
            answer = stack.enter_context(httpx.stream("POST", f"{url}{PATH}", json=body, timeout=60))
            assert answer.status_code == 200
        shed = httpx.post(f"{url}{PATH}", json=chat())
        assert (shed.status_code, shed.headers["retry-after"]) == (429, "1")
        assert shed.json()["error"]["code"] == "overloaded"


def test_a_subset_is_obeyed_and_a_clients_destination_is_not(
    servers: Sequence[Server], served: tuple[str, Picker]
) -> None:
    url, _ = served
    for server in servers:
        own, other = (each.url.partition("//")[2] for each in (server, servers[servers[0] is server]))
        for headers in ({"x-test-subset": own}, {"x-test-subset": own, DESTINATION: other}):
            answer = httpx.post(f"{url}{PATH}", json=chat(), headers=headers)
            assert (answer.status_code, answer.headers["x-test-served"]) == (200, own)
    refused = httpx.post(f"{url}{PATH}", json=chat(), headers={"x-test-subset": "192.0.2.1:80"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_replica")


def test_envoy_goes_down_the_list_when_a_server_is_gone(checkpoint: Path, tmp_path: Path) -> None:
    with replicas(checkpoint, 2) as servers, gateway(servers, tmp_path) as (url, picker):
        servers[0].signal(signal.SIGKILL)
        servers[0].wait()
        address = servers[1].url.partition("//")[2]
        for i in range(3):  # at most the first of them is sent to the dead one
            answer = httpx.post(f"{url}{PATH}", json=chat(f"{i}" * 99), timeout=60)
            assert (answer.status_code, answer.headers["x-test-served"]) == (200, address)
        until(lambda: metric(picker.metrics_url, UP)[servers[0].url] == 0)
        until(lambda: loads(picker) == [0, 0])
        servers[1].signal(signal.SIGKILL)
        until(lambda: httpx.post(f"{url}{PATH}", json=chat()).status_code == 503)
        until(lambda: "no_replica" in httpx.post(f"{url}{PATH}", json=chat()).text)
        assert json.loads(httpx.post(f"{url}/v1/messages", json=chat()).text)["error"]["type"] == "overloaded_error"
