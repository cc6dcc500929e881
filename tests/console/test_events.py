"""The stream of live records, and the keys that it and an abort need."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.serving import Server, running_server, until

KEY, ADMIN = {"Authorization": "Bearer sesame"}, {"Authorization": "Bearer master"}
PRICE = 0.7582  # dollars an hour of an inf2.xlarge
Records = Iterator[dict[str, Any]]


@contextlib.contextmanager
def records(server: Server, headers: dict[str, str] | None = None) -> Iterator[Records]:
    """The records of one open page."""
    with httpx.stream("GET", f"{server.url}/console/events", headers=headers or {}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))
        yield (json.loads(line) for line in lines if line != "[DONE]")


def first(found: Records, kind: str) -> dict[str, Any]:
    return next(record for record in found if record["type"] == kind)


def chat(server: Server, text: str, headers: dict[str, str] | None = None) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 300}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers or {})


def test_a_page_first_gets_what_the_server_is(echo: Server) -> None:
    with records(echo) as found:
        server = next(found)
    assert server["type"] == "server"
    assert server["phase"] == "ready"
    assert server["inventory"] == httpx.get(f"{echo.url}/inventory").json()
    part = server["part"]
    assert part["name"] == "inf2.xlarge"
    assert part["neighbours"] == [[]]
    assert [core["used"] for core in server["cores"]] == [{"weights": 700, "kv": 200}, {"weights": 600, "kv": 200}]


def tokens(live: dict[str, Any], which: str, of: dict[str, Any] | None = None) -> int:
    """Return the tokens in the bins of a record; with `of`, only in bins that the other record has too."""
    names = ("engine", "number", "steps", "prefill", "decode")
    bins = [dict(zip(names, each, strict=False)) for each in live["bins"]]
    again = None if of is None else {tuple(each[:2]) for each in of["bins"]}
    return sum(each[which] for each in bins if again is None or (each["engine"], each["number"]) in again)


def test_a_page_sees_requests_steps_and_cost(echo: Server) -> None:
    before = chat(echo, "before the page was opened")
    with records(echo) as found:
        history = first(found, "live")
        during = chat(echo, "while it is open")
        news = next(r for r in found if r["type"] == "live" and r["ended"])
    ids = [row["id"] for row in history["ended"]]
    assert before.headers["x-request-id"] in ids
    (row,) = news["ended"]
    assert row["id"] == during.headers["x-request-id"]
    usage = during.json()["usage"]
    assert (row["prompt_tokens"], row["output_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert row["finish"] == ["stop"]
    assert row["device_s"] > 0
    assert row["usd"] > 0
    assert row["queue_s"] + row["prefill_s"] + row["decode_s"] <= row["e2e_s"]
    prefill, decode = (tokens(news, which) - tokens(history, which, of=news) for which in ("prefill", "decode"))
    assert prefill + row["cached_tokens"] == usage["prompt_tokens"]
    assert decode == usage["completion_tokens"] - 1
    minute = news["cost"]["minute"]
    assert minute["output_tokens"] >= usage["completion_tokens"]
    parts = ("busy_usd", "idle_usd", "host_usd", "unused_cores_usd")
    dollars = sum(minute[part] for part in parts)
    total = minute["prompt_tokens"] + minute["cached_tokens"] + minute["output_tokens"]
    assert minute["usd_per_million_tokens"] == pytest.approx(1e6 * dollars / total)
    assert dollars == pytest.approx(PRICE * minute["seconds"] / 3600, rel=1e-3)


def test_no_step_is_told_twice(echo: Server) -> None:
    chat(echo, "a")
    with records(echo) as found:
        lives = [first(found, "live") for _ in range(3)]
    numbers = [(each[0], each[1], each[2]) for live in lives for each in live["bins"]]
    whole = {(engine, number): steps for engine, number, steps in numbers}
    assert len(numbers) <= len(whole) + 2  # the bin at each seam may grow, and then comes again as a whole


def abort(server: Server, request_id: str, headers: dict[str, str]) -> httpx.Response:
    return httpx.post(f"{server.url}/admin/abort-request", json={"request_id": request_id}, headers=headers)


@pytest.mark.slow
def test_the_map_of_blocks_follows_requests(slow: Server) -> None:
    with ThreadPoolExecutor() as pool, records(slow, KEY) as found:
        answer = pool.submit(chat, slow, "x" * 100, KEY)
        while not (owned := first(found, "blocks")["engines"][0])["owners"]:
            pass
        (row,) = next(r for r in found if r["type"] == "live" and r["open"])["open"]
        assert abort(slow, row["id"], ADMIN).status_code == 200
        answer.result()
        while (freed := first(found, "blocks")["engines"][0])["owners"]:
            pass
    assert owned["owners"] == row["sequences"]
    total = sum(length for length, _ in owned["runs"])
    assert total == 255  # all but the null block
    assert sum(length for length, owner in owned["runs"] if owner == 3) >= 4  # of 32 tokens, for more than 100
    assert sum(length for length, owner in freed["runs"] if owner == 1) >= 3  # named, and found again
    assert total == sum(length for length, _ in freed["runs"])


def test_a_key_is_needed_where_the_server_has_one(slow: Server) -> None:
    for path in ("/console/events", "/console/choices"):
        assert httpx.get(slow.url + path).status_code == 401
    assert httpx.get(slow.url).status_code == 200  # the page that asks for it
    for headers in (KEY, ADMIN):
        with records(slow, headers) as found:
            assert next(found)["has_admin_key"] is True


def test_only_an_operator_ends_requests(slow: Server) -> None:
    with ThreadPoolExecutor() as pool, records(slow, KEY) as found:
        answer = pool.submit(chat, slow, "never ends", KEY)
        (row,) = next(r for r in found if r["type"] == "live" and r["open"])["open"]
        assert (abort(slow, row["id"], {}).status_code, abort(slow, row["id"], KEY).status_code) == (401, 403)
        assert httpx.post(f"{slow.url}/admin/restart-engine", headers=KEY).status_code == 403
        assert abort(slow, row["id"], ADMIN).json() == {"aborted": 1}
        refused = answer.result()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "aborted")
        (ended,) = next(r for r in found if r["type"] == "live" and r["ended"])["ended"]
        assert (ended["id"], ended["finish"]) == (row["id"], ["abort"])
        assert abort(slow, row["id"], ADMIN).json() == {"aborted": 0}


@pytest.mark.slow
def test_a_stream_ends_when_the_server_drains(echo_checkpoint: Path) -> None:
    with running_server(echo_checkpoint, "--device", "echo") as server:
        with records(server) as found:
            next(found)
            server.signal(signal.SIGTERM)
            phases = [record["phase"] for record in found if record["type"] == "live"]
        assert phases[-1] == "draining"
        assert server.wait() == 0


def test_a_page_that_leaves_costs_nothing(echo: Server) -> None:
    in_flight = f"{echo.url}/load"
    with records(echo) as found:
        next(found)
    until(lambda: httpx.get(in_flight).json()["server_load"] == 0)
