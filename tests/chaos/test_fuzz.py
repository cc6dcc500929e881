"""Requests that are almost right, by the thousand: none is answered by 5xx or not at all, and others do not notice.

`make fuzz` sends a hundred thousand. Those that schemathesis makes: `tests/api/test_openapi_page.py`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest

from tests.api.serving import PATIENCE_S, Server, running_server, write_checkpoint
from tests.chaos.near_valid import Grammar, NearValid

CLIENTS = 16
GOOD_BODY = {"prompt": "beside", "max_tokens": 40, "temperature": 0.9, "seed": 1, "ignore_eos": True}
GOOD = NearValid("POST", "/v1/completions", {"content-type": "application/json"}, json.dumps(GOOD_BODY).encode())
SLOW_S = 2.0  # the goal for every answer; printed and not asserted


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("fuzzed")
    options = ("--disable-access-log", "--data-dir", str(folder / "data"))
    with running_server(write_checkpoint(folder / "model"), *options) as server:
        yield server


@dataclass
class Findings:
    """Outcomes of the requests so far."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[tuple[float, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    good: Counter[str] = field(default_factory=Counter)  # answers to the one request that is right

    def take(self, request: NearValid, answer: httpx.Response, seconds: float) -> None:
        self.statuses[answer.status_code] += 1
        self.seconds.append((seconds, request.as_curl))
        if answer.status_code >= 500 or '"type": "server_error"' in answer.text or '"internal_error"' in answer.text:
            self.wrong.append(f"{answer.status_code} {answer.text[:300]}\n  {request.as_curl}")
        elif answer.status_code >= 400 and request.method != "HEAD" and not is_error(answer):
            self.wrong.append(f"no error object: {answer.status_code} {answer.text[:300]}\n  {request.as_curl}")


def is_error(answer: httpx.Response) -> bool:
    """Whether a refusal says so as its dialect does."""
    try:
        return "error" in answer.json()
    except ValueError:
        return False


async def answer_to(client: httpx.AsyncClient, request: NearValid) -> httpx.Response:
    """The server's answer. Raises httpx.HTTPError when there is none."""
    return await client.request(request.method, request.path, headers=request.headers, content=request.content)


async def fuzz(url: str, count: int, seed: int) -> Findings:
    """Send `count` requests from several clients, and good ones beside them.

    Each must be answered at once: the server keeps connections for longer than this client uses them, so that it has
    no reason to close one on which a request comes. Clients share no pool of connections: there requests wait for each
    other, a few of them for seconds.
    """
    findings, is_over = Findings(), asyncio.Event()
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        grammar = Grammar((await client.get("/openapi.json")).json(), seed)
        left = iter(range(count))

        async def send() -> None:
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as own:
                for _ in left:
                    request, begin = grammar.next(), time.monotonic()
                    try:
                        answer = await answer_to(own, request)
                    except httpx.HTTPError as error:
                        findings.wrong.append(f"no answer: {error!r}\n  {request.as_curl}")
                    else:
                        findings.take(request, answer, time.monotonic() - begin)

        async def ask() -> None:
            while not is_over.is_set():
                answer = await answer_to(client, GOOD)
                findings.good[json.dumps(answer.json().get("choices"))] += 1

        asking = asyncio.ensure_future(ask())
        await asyncio.gather(*(send() for _ in range(CLIENTS)))
        is_over.set()
        await asking
    return findings


@pytest.mark.parametrize(
    "count",
    [
        400,
        pytest.param(20_000, marks=pytest.mark.thorough, id="thorough"),
        pytest.param(100_000, marks=pytest.mark.chaos, id="chaos"),
    ],
)
def test_almost_right_requests_are_answered_or_refused_and_nothing_else(fuzzed: Server, count: int) -> None:
    findings = asyncio.run(fuzz(fuzzed.url, count, seed=count))
    slow = sorted((each for each in findings.seconds if each[0] > SLOW_S), reverse=True)
    longest = max(findings.seconds)
    statuses = dict(sorted(findings.statuses.items()))
    print(f"\n{count} requests: {statuses}; longest {longest[0]:.2f} s, {len(slow)} over {SLOW_S:g} s")
    print("\n".join(f"{seconds:.2f} s: {request[:300]}" for seconds, request in slow[:5]))
    assert not findings.wrong, f"{len(findings.wrong)} of {count}:\n" + "\n".join(findings.wrong[:20])
    assert len(findings.good) == 1
    assert findings.statuses[200] > count / 20  # it is almost right
    assert httpx.get(fuzzed.url + "/health/ready").status_code == 200
