"""Servers on a Ray cluster of several nodes, in front of which clients notice neither lost nodes nor updates."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.serving import ROOT, Server, run_command, running_server, until, write_checkpoint
from tests.route.routers import metric
from tests.route.test_resume import KINDS, SLOW, ask, check

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: make .venv/.ray"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]
UP, OPEN = "neuronserve_route_replica_up", "neuronserve_route_open_tokens"
RAY = ("--distributed", "ray", "--cpu-threads", "1")
GIB = 2**30
# Nodes and workers get them from this process; the last makes `auto` look at the load more often.
VARIABLES = {
    "PYTHONPATH": str(ROOT),
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "0" * 32,
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    "NEURONSERVE_CONTEXT_OVERFLOW": "clip",
    "RAY_raylet_start_wait_time_s": "600",  # on a busy host
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs, and two nodes with one."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        try:
            for _ in range(2):
                add_node(made)
            patch.setenv("RAY_ADDRESS", made.address)
            yield made
        finally:
            made.shutdown()


def add_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, memory=4 * GIB, object_store_memory=100 * 2**20)


@pytest.fixture(scope="module")
def expected(model: Path) -> Iterator[Sequence[str]]:
    """Answers of a plain server, by kind of request."""
    with running_server(model, *SLOW) as plain:
        yield [ask(plain.url, kind)[1] for kind in range(len(KINDS))]


def num_up(server: Server) -> float:
    return sum(metric(server.url, UP).values())


def test_streams_of_a_node_that_dies_go_on_and_its_replica_starts_elsewhere(
    cluster: Any, model: Path, expected: Sequence[str]
) -> None:
    with running_server(model, *SLOW, *RAY, "--num-replicas", "2") as server, ThreadPoolExecutor(32) as pool:
        until(lambda: num_up(server) == 2)
        answers = [pool.submit(ask, server.url, kind) for kind in range(32)]
        until(lambda: all(metric(server.url, OPEN).values()))
        cluster.remove_node(cluster.list_all_nodes()[1], allow_graceful=False)

        def has_lost_some() -> bool:
            """Check all answers, and ask again: a node's processes may outlive it by seconds."""
            for kind, answer in enumerate(answers):
                check(answer, expected[kind % len(KINDS)])
            answers[:] = [pool.submit(ask, server.url, kind) for kind in range(32)]
            return sum(metric(server.url, "neuronserve_route_lost_requests_total").values()) > 0

        until(has_lost_some)
        for kind, answer in enumerate(answers):
            check(answer, expected[kind % len(KINDS)])
        add_node(cluster)
        until(lambda: num_up(server) == 2)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


def test_auto_adds_a_replica_under_load(cluster: Any, model: Path) -> None:
    auto = ("--num-replicas", "auto", "--max-num-seqs", "2", "--device", "slow:0.05")
    with running_server(model, *RAY, *auto) as server, ThreadPoolExecutor(8) as pool:
        assert num_up(server) == 1
        until_two = [pool.submit(load, server) for _ in range(8)]
        for each in until_two:
            each.result()
        assert num_up(server) == 2


def load(server: Server) -> None:
    """Send requests until there are two replicas."""
    body = {"model": "fake", "prompt": "hello", "max_tokens": 40, "ignore_eos": True}
    until(lambda: httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).is_success and num_up(server) == 2)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--num-replicas", "9"), "each of 9 replicas needs 1 CPUs and 1.0 GiB, and the cluster has room for 2"),
        (("--host-memory-gib", "40"), "needs 1 CPUs and 40.0 GiB, and the cluster has room for 0"),
        (("--device", "fail"), "it needs 99 GiB, the core has 16 GiB"),
    ],
)
def test_what_cannot_run_is_refused_with_the_account(cluster: Any, model: Path, args: Sequence[str], said: str) -> None:
    ended = run_command("serve", str(model), "--port", "0", *RAY, *args, env=dict(os.environ))
    assert ended.returncode == 2
    assert said in ended.stderr.splitlines()[-1]


@contextlib.contextmanager
def deployed(model: Path) -> Iterator[tuple[Any, str]]:
    """Yield a function that deploys the application behind Serve's own HTTP proxy, and the proxy's address."""
    import ray
    from ray import serve

    from neuronserve.server.ray.app import plan_of, routed

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray.init(log_to_driver=False)
    try:
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})

        def deploy(**settings: Any) -> None:
            given = {"model": str(model), "served_model_name": ["fake"], "max_num_seqs": 64, "device": "slow:0.01"}
            given |= {"distributed": "ray", "cpu_threads": 1} | settings
            serve.run(routed(plan_of(given, "tests.api.serve_fake")), name="neuronserve", route_prefix="/")

        yield deploy, f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def test_streams_through_serves_proxy_survive_scaling_and_a_rolling_update(
    cluster: Any, model: Path, expected: Sequence[str]
) -> None:
    from ray import serve

    with deployed(model) as (deploy, url), ThreadPoolExecutor(32) as pool:
        deploy(num_replicas=1)
        for settings in ({"num_replicas": 2}, {"num_replicas": 2, "log_level": "warning"}, {"num_replicas": 1}):
            answers = [pool.submit(ask, url, kind) for kind in range(18)]
            deploy(**settings)
            for kind, answer in enumerate(answers):
                check(answer, expected[kind % len(KINDS)])
        handle = serve.get_deployment_handle("Server", "neuronserve").options(stream=True)
        body = b'{"model": "fake", "prompt": "hello", "max_tokens": 9, "stream": true, "ignore_eos": true}'
        assert b"".join(handle.remote("/v1/completions", body)).endswith(b"data: [DONE]\n\n")
