"""Objectives of requests by headers: the first deadline is served first, and bad values are refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.api.serving import Server, running_server, until
from tests.api.telemetry.scraping import scrape
from tests.api.test_life import TEXT

TTFT, TPOT, FAIRNESS = "x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms", "x-llm-d-inference-fairness-id"
SLOW_ALONE = ("--device", "slow:0.02", "--max-num-seqs", "1")


@pytest.fixture(scope="module")
def by_deadline(checkpoint: Path) -> Iterator[Server]:
    with running_server(checkpoint, *SLOW_ALONE, "--scheduling-policy", "slo", "--step-time-target-ms", "auto") as it:
        yield it


def waiting(url: str) -> float:
    return scrape(url).value("vllm:num_requests_waiting")


def order_of_ends(url: str, each_headers: list[dict[str, str]]) -> list[int]:
    """Indices of requests in the order of their ends; they came in the order of their indices, behind a long one."""
    ended: list[int] = []

    def ask(index: int, max_tokens: int, headers: dict[str, str]) -> None:
        body = {"prompt": "a", "max_tokens": max_tokens, "ignore_eos": True}
        assert httpx.post(url + TEXT, json=body, headers=headers, timeout=120).status_code == 200
        ended.append(index)

    with ThreadPoolExecutor(len(each_headers) + 1) as pool:
        pool.submit(ask, -1, 100, {})
        until(lambda: scrape(url).value("vllm:num_requests_running") == 1)
        for index, headers in enumerate(each_headers):
            pool.submit(ask, index, 1, headers)
            until(lambda count=index + 1: waiting(url) == count)
    return ended


def test_the_first_deadline_is_served_first(by_deadline: Server) -> None:
    assert order_of_ends(by_deadline.url, [{}, {TTFT: "20000"}, {TTFT: "9000.5"}]) == [-1, 2, 1, 0]


def test_a_fairness_id_is_a_tenant_on_a_server_without_keys(checkpoint: Path) -> None:
    with running_server(checkpoint, *SLOW_ALONE) as server:
        many, few = {FAIRNESS: "many"}, {FAIRNESS: "few"}
        order = order_of_ends(server.url, [many, many, many, few])
    assert order.index(3) < order.index(1), "it waits for one turn of another tenant at most"


@pytest.mark.parametrize("header", [TTFT, TPOT])
@pytest.mark.parametrize("value", ["", "soon", "0", "-1", "nan", "inf", "1e9"])
def test_an_objective_that_is_none_is_refused_by_name(server: Server, header: str, value: str) -> None:
    refused = httpx.post(server.url + TEXT, json={"prompt": "a", "max_tokens": 1}, headers={header: value})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, header)
    assert "86400000" in error["message"]


@pytest.mark.parametrize("header", [FAIRNESS, "x-session-id"])
def test_an_id_has_a_limit(server: Server, header: str) -> None:
    refused = httpx.post(server.url + TEXT, json={"prompt": "a"}, headers={header: "x" * 129})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, header)
