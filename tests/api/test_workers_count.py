"""Several API processes: limits and counts are the server's, whichever process is asked."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.serving import Server, running_server, until
from tests.api.telemetry.scraping import scrape
from tests.api.test_lora import PROMPT
from tests.api.test_overload import rejections
from tests.api.test_workers import TEXT, WORKERS, clients, events, is_whole
from tools.random_checkpoint.adapter import adapter_tensors, write_adapter
from tools.random_checkpoint.writer import Options, write_checkpoint

KEYS = """
keys:
  - {name: ops, key: ops-key, scopes: [admin]}
  - {name: free, key: free-key}
  - {name: few, key: few-key, limits: {requests_per_minute: 3}}
  - {name: some, key: some-key, limits: {tokens_per_minute: 30}}
  - {name: one, key: one-key, limits: {max_concurrent: 1}}
"""
RULES = """
rules:
  - {fault: server_error, every: 2, times: 2, match: {user: tester}}
"""
SHORT: dict[str, Any] = {"prompt": "abcdef", "max_tokens": 4, "ignore_eos": True, "seed": 1}
LONG = SHORT | {"max_tokens": 400, "stream": True}
FAULTS = "neuronserve:injected_faults_total"


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    path.write_text(KEYS)
    return path


@pytest.fixture(scope="module")
def server(checkpoint: Path, keys_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("counted")
    (folder / "rules.yaml").write_text(RULES)
    files = ("--api-keys-file", str(keys_file), "--inject-faults", str(folder / "rules.yaml"))
    where = ("--data-dir", str(folder / "data"), "--public-paths", "/metrics")
    with running_server(checkpoint, *WORKERS, "--device", "slow:0.02", *files, *where) as running:
        yield running


def ask(client: httpx.Client, key: str, **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}-key", "X-Neuronserve-Usage": "true"}
    return client.post(TEXT, json=SHORT | body, headers=headers, timeout=60)


def usage(client: httpx.Client, key: str = "ops") -> dict[str, dict[str, Any]]:
    rows = client.get("/v1/usage", headers={"Authorization": f"Bearer {key}-key"}).json()["data"]
    return {row["api_key"]: row for row in rows}


@pytest.mark.slow
def test_requests_a_minute_are_counted_over_all_workers(server: Server) -> None:
    with clients(server) as by_pid:
        one, other = by_pid.values()
        answers = [ask(client, "few") for client in (one, other, other, one, other)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["2", "1", "0", "0", "0"]
        error = answers[-1].json()["error"]
        assert (error["code"], error["type"]) == ("rate_limit_exceeded", "requests")
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 20
        assert usage(one)["few"] == usage(other)["few"] == usage(one, "few")["few"]
        assert (usage(other)["few"]["requests"], usage(other)["few"]["rate_limited"]) == (3, 2)
        assert scrape(server.url).value("neuronserve:api_key_rate_limited_total", api_key="few") == 2


def test_tokens_of_one_worker_are_owed_at_the_other(server: Server) -> None:
    with clients(server) as by_pid:
        one, other = by_pid.values()
        assert ask(one, "some", max_tokens=40).status_code == 200
        refused = ask(other, "some")
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "tokens")
        assert int(refused.headers["retry-after"]) > 30  # of the debt too, which is 16 tokens at 30 a minute
        body = {"input": "a", "max_output_tokens": 4, "background": True, "model": "fake"}
        headers = {"Authorization": "Bearer some-key"}
        assert other.post("/v1/responses", json=body, headers=headers).status_code == 429  # and none that has failed
        assert usage(one)["some"]["requests"] == 1


@pytest.mark.slow
def test_a_dead_workers_requests_are_under_way_no_more(server: Server) -> None:
    headers = {"Authorization": "Bearer one-key"}
    with clients(server) as by_pid:
        (victim, mine), (survivor, other) = by_pid.items()
        with mine.stream("POST", TEXT, json=LONG, headers=headers) as response:
            assert response.status_code == 200
            lines = events(response)
            next(lines)
            refused = ask(other, "one")
            assert (refused.status_code, refused.json()["error"]["type"]) == (429, "concurrent_requests")
            os.kill(victim, signal.SIGKILL)
            until(lambda: ask(other, "one").status_code == 200)
        until(lambda: is_whole(server, but=victim))
        with clients(server) as now:
            assert survivor in now
            assert {ask(client, "one").status_code for client in now.values()} == {200}


def test_limits_of_a_file_that_has_changed_are_of_all_workers(server: Server, keys_file: Path) -> None:
    keys_file.write_text(KEYS + "  - {name: new, key: new-key, limits: {requests_per_minute: 1}}\n")
    with clients(server) as by_pid:
        until(lambda: all(ask(client, "new").status_code == 429 for client in by_pid.values()))
        assert {ask(client, "new").json()["error"]["type"] for client in by_pid.values()} == {"requests"}


def test_usage_is_what_all_workers_have_served(server: Server) -> None:
    with clients(server) as by_pid:
        one, other = by_pid.values()
        served = [ask(client, "free", seed=number) for number, client in enumerate((one, other, other))]
        assert [answer.status_code for answer in served] == [200, 200, 200]
        row = usage(other, "free")["free"]
        assert (row["requests"], row["prompt_tokens"], row["total_tokens"]) == (3, 18, 30)
        assert row == usage(one)["free"]
        charged = sum(answer.json()["usage"]["neuronserve"]["device_seconds"] for answer in served)
        assert row["device_seconds"] == pytest.approx(charged)
        assert list(usage(one, "free")) == ["free"]


def test_a_rule_of_faults_counts_the_requests_of_all_workers(server: Server) -> None:
    with clients(server) as by_pid:
        one, other = by_pid.values()
        order = (one, other, one, one, other, other)
        given = [ask(client, "free", user="tester").status_code for client in order]
        assert given == [200, 500, 200, 500, 200, 200]  # every second one, twice
        assert scrape(server.url).value(FAULTS) == 2


@pytest.mark.slow
def test_who_would_wait_too_long_at_any_worker_is_told_when_to_come_back(
    checkpoint: Path, hold: Path, tmp_path: Path
) -> None:
    argv = ("--device", f"hold:{hold}", "--max-num-seqs", "1", "--max-queue-delay", "0.000001")
    with (
        running_server(checkpoint, *WORKERS, *argv, "--data-dir", str(tmp_path / "data")) as server,
        clients(server) as by_pid,
    ):
        one, other = by_pid.values()
        with one.stream("POST", TEXT, json=LONG) as running:
            assert running.status_code == 200
            lines = running.iter_lines()
            next(lines)
            for body in (SHORT, SHORT | {"stream": True}, SHORT | {"prompt": ["a", "b"]}):
                refused = other.post(TEXT, json=body)
                assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
                assert 1 <= int(refused.headers["retry-after"]) <= 60
            behind = other.post("/v1/responses", json={"input": "a", "background": True})
            assert (behind.status_code, behind.json()["error"]["code"]) == (429, "overloaded")
            assert rejections(server, "max_queue_delay") == 4
            assert scrape(server.url).value("neuronserve:predicted_queue_delay_seconds") > 0
            hold.unlink()
        until(lambda: all(client.post(TEXT, json=SHORT).status_code == 200 for client in by_pid.values()))


@pytest.mark.slow
def test_under_three_times_its_load_it_answers_or_refuses_and_nothing_else(checkpoint: Path, tmp_path: Path) -> None:
    """Two places of about 0.2 s each, and always at least eight waiting clients."""
    argv = ("--device", "slow:0.01", "--max-num-seqs", "2", "--max-queue-delay", "0.3")
    body = SHORT | {"max_tokens": 20}
    with running_server(checkpoint, *WORKERS, *argv, "--data-dir", str(tmp_path / "data")) as server:
        text = httpx.post(server.url + TEXT, json=body).json()["choices"][0]["text"]
        for _ in range(3):  # from which it learns how long such requests take
            httpx.post(server.url + TEXT, json=body)
        with clients(server) as by_pid, ThreadPoolExecutor(8) as pool:
            turns = [client for _ in range(40) for client in by_pid.values()]
            answers = list(pool.map(lambda client: client.post(TEXT, json=body, timeout=120), turns))
        refused = [answer for answer in answers if answer.status_code == 429]
        taken = [answer for answer in answers if answer.status_code == 200]
        assert {answer.status_code for answer in answers} == {200, 429}
        assert {json.loads(answer.text)["choices"][0]["text"] for answer in taken} == {text}
        assert {answer.json()["error"]["code"] for answer in refused} == {"overloaded"}
        assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
        assert rejections(server, "max_queue_delay") == len(refused)
        until(lambda: httpx.post(server.url + TEXT, json=SHORT).status_code == 200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    write_checkpoint("tiny-qwen3", folder / "model", Options())
    for seed, name in enumerate(("sql", "chat", "more")):
        write_adapter(folder / name, adapter_tensors(folder / "model", 4 + seed, seed=seed))
    return folder


@pytest.mark.slow
def test_an_adapter_that_is_loaded_at_one_worker_is_served_by_each(folder: Path, kernel_cache: str) -> None:
    limits = ("--max-loras", "2", "--max-lora-rank", "8", "--max-num-seqs", "8", "--max-model-len", "256")
    argv = (*limits, "--lora-modules", f"sql={folder / 'sql'}", "--allow-runtime-lora-updating")
    where = ("--kernel-cache-dir", kernel_cache, "--data-dir", str(folder / "data"))
    with running_server(folder / "model", *WORKERS, *argv, *where, program="neuronserve") as server:
        with clients(server) as by_pid:
            (victim, one), (_, other) = by_pid.items()
            assert load(one, "chat", folder / "chat").status_code == 200
            assert [models(client) for client in by_pid.values()] == [["fake", "sql", "chat"]] * 2
            chat, base = tokens(one, "chat"), tokens(one, "fake")
            assert tokens(other, "chat") == chat != base
            assert load(other, "chat", folder / "more").json()["error"]["code"] == "already_loaded"
            assert (
                "max_loras are loaded or still in use"
                in load(other, "more", folder / "more").json()["error"]["message"]
            )
            os.kill(victim, signal.SIGKILL)
            until(lambda: is_whole(server, but=victim))
        with clients(server) as by_pid:
            assert [models(client) for client in by_pid.values()] == [["fake", "sql", "chat"]] * 2  # a successor too
            one, other = by_pid.values()
            body = {"prompt": PROMPT, "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}
            with one.stream("POST", TEXT, json=body | {"model": "chat"}) as response:
                lines = events(response)
                next(lines)
                assert other.post("/v1/unload_lora_adapter", json={"lora_name": "chat"}).status_code == 200
                gone = other.post(TEXT, json={"model": "chat", "prompt": "a"})
                assert gone.json()["error"]["code"] == "model_not_found"
                assert list(lines)[-1] == "[DONE]"  # which began with it
            assert models(one) == ["fake", "sql"]
            until(lambda: load(one, "more", folder / "more").status_code == 200)  # in the place that it has left
            assert tokens(other, "more") == tokens(one, "more") != chat
            assert tokens(other, "fake") == base


def load(client: httpx.Client, name: str, path: Path) -> httpx.Response:
    return client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)}, timeout=60)


def models(client: httpx.Client) -> list[str]:
    return [model["id"] for model in client.get("/v1/models").json()["data"]]


def tokens(client: httpx.Client, model: str) -> list[int]:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    answer = client.post(TEXT, json=body | {"return_token_ids": True}, timeout=60).json()
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids
