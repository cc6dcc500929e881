"""`neuronserve serve --replicas`: servers behind one address, each of which may die."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from neuronserve.server.errors import SettingsError
from neuronserve.server.settings.replicas import of_replica
from neuronserve.server.settings.serve import ServeSettings
from neuronserve.server.settings.sources import load_settings
from tests.api.serving import Server, children, is_running, run_command, running_server, until
from tests.route.routers import metric, replica_pids

BODY: dict[str, Any] = {"model": "fake", "prompt": "hello", "max_tokens": 150, "stream": True, "ignore_eos": True}
OPEN = "neuronserve_route_open_tokens"


@pytest.fixture(scope="module")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = str(tmp_path_factory.mktemp("replicas"))
    with running_server(checkpoint, "--replicas", "2", "--device", "slow:0.01", "--data-dir", data_dir) as running:
        yield running


def stream(server: Server, seed: int) -> str:
    answer = httpx.post(f"{server.url}/v1/completions", json=BODY | {"seed": seed}, timeout=120)
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    assert answer.text.endswith("data: [DONE]\n\n")
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


def test_a_replica_that_is_killed_costs_no_stream_and_starts_again(server: Server) -> None:
    expected = stream(server, 0)
    before = replica_pids(server)
    assert len(before) == 2
    with ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(stream, server, seed) for seed in range(8)]
        until(lambda: all(metric(server.url, OPEN).values()))
        os.kill(before[0], signal.SIGKILL)
        assert {each.result() for each in streams} == {expected}  # the fake model follows no seed
    until(lambda: len(replica_pids(server)) == 2 and set(replica_pids(server)) != set(before))
    until(lambda: list(metric(server.url, "neuronserve_route_replica_up").values()) == [1, 1])


def test_each_replica_has_its_own_store_and_its_metrics_are_shown(server: Server) -> None:
    made = [httpx.post(f"{server.url}/v1/responses", json={"model": "fake", "input": f"{i}" * 100}) for i in range(4)]
    for answer in made:
        assert httpx.get(f"{server.url}/v1/responses/{answer.json()['id']}").status_code == 200
    text = httpx.get(f"{server.url}/metrics").text
    for name in metric(server.url, OPEN):
        assert re.search(rf'^vllm:num_requests_running\{{[^}}]*replica="{name}"\}} 0.0$', text, re.MULTILINE)
    assert text.count("# TYPE vllm:num_requests_running gauge") == 1


def test_restarts_of_engines_reach_all_replicas(server: Server) -> None:
    engines = server.engine_pids
    server.signal(signal.SIGHUP)
    until(lambda: len(set(server.engine_pids) - set(engines)) == 2)
    assert stream(server, 0)


def test_replicas_end_with_their_router(checkpoint: Path) -> None:
    with running_server(checkpoint, "--replicas", "2") as server:
        pids = children(server.process.pid)
        server.signal(signal.SIGKILL)
        server.wait()
        until(lambda: not any(map(is_running, pids)))


def test_a_replica_that_dies_more_often_than_it_may_restart_ends_the_server(checkpoint: Path) -> None:
    with running_server(checkpoint, "--replicas", "2", "--max-engine-restarts", "0") as server:
        os.kill(replica_pids(server)[0], signal.SIGKILL)
        assert server.wait() == 1
        assert "was killed by SIGKILL" in server.last_words()


def test_a_replica_that_cannot_start_ends_the_server_with_its_reason(checkpoint: Path) -> None:
    ended = run_command("serve", str(checkpoint), "--replicas", "2", "--port", "0", "--device", "fail")
    assert ended.returncode == 2
    assert "it needs 99 GiB" in ended.stderr


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--replicas", "2", "--console"], "console"),
        (["--replicas", "2", "--kv-events-config", '{"enable_kv_cache_events": true}'], "kv_events_config"),
        (["--replicas", "0"], "greater than or equal to 1"),
    ],
)
def test_settings_that_replicas_cannot_share_are_refused(argv: list[str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings(ServeSettings, argv)


def test_the_flag_of_earlier_versions_names_its_successor() -> None:
    ended = run_command("serve", "--api-workers", "2")
    assert ended.returncode == 2
    assert "--replicas" in ended.stderr


def test_each_replica_gets_its_share_of_the_host() -> None:
    settings = load_settings(ServeSettings, ["--replicas", "2", "--cpu-threads", "6", "--data-dir", "/data"])
    shares = [of_replica(settings, number) for number in range(2)]
    assert [each.cpu_threads for each in shares] == [3, 3]
    assert [each.data_dir for each in shares] == [Path("/data/0"), Path("/data/1")]
