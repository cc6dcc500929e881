"""Scripts of the chart: the test of a router that `helm test` runs, with real servers, a real router, and an API server
that ends a pod; and the waits of a server for its stages, and of Ray's head for its workers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.api.serving import PATIENCE_S, Server, running_server, until, write_checkpoint
from tests.deploy.chart import Manifest, golden, of_kind, pods
from tests.route.routers import metric, running_router

(TEST,) = (each for each in of_kind(golden("router"), "Pod") if each["metadata"]["name"].endswith("-failover"))
CONTAINER = TEST["spec"]["containers"][0]
VARIABLES = {each["name"]: each.get("value", "") for each in CONTAINER["env"]}


class Quiet(BaseHTTPRequestHandler):
    """Answers with JSON, and logs nothing."""

    def answer(self, body: Manifest) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class Kubernetes:
    """Lists servers as pods, and ends one that is deleted."""

    def __init__(self, pods: dict[str, Server], labels: dict[str, str]) -> None:
        self.asked: list[tuple[str, str, str]] = []  # method, path and token
        kubernetes = self

        class Handler(Quiet):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                kubernetes.note(self)
                wanted = dict(each.split("=") for each in parse_qs(url.query)["labelSelector"][0].split(","))
                status = {"conditions": [{"type": "Ready", "status": "True"}]}
                items = [{"metadata": {"name": name}, "status": status} for name in pods] if wanted == labels else []
                self.answer({"items": items})

            def do_DELETE(self) -> None:
                kubernetes.note(self)
                options = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert options == {"gracePeriodSeconds": 1}
                pods[self.path.rpartition("/")[2]].process.kill()
                self.answer({})

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def note(self, request: BaseHTTPRequestHandler) -> None:
        token = request.headers["Authorization"].removeprefix("Bearer ")
        self.asked.append((request.command, urlsplit(request.path).path, token))

    def __enter__(self) -> Kubernetes:
        Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    """Two servers with a fake model of 5 ms a step."""
    model, slow = write_checkpoint(tmp_path / "model"), ("--device", "slow:0.005")
    (tmp_path / "token").write_text("token-of-the-test")
    with running_server(model, *slow) as first, running_server(model, *slow) as second:
        yield [first, second]


def run(url: str, servers: list[Server], account: Path) -> tuple[subprocess.CompletedProcess[str], Kubernetes]:
    """Run the chart's test in a cluster of `servers`."""
    pods = {f"server-{number}": each for number, each in enumerate(servers)}
    with Kubernetes(pods, json.loads(VARIABLES["SELECTOR"])) as kubernetes:
        given = {"BASE_URL": url, "MODEL": "fake", "KUBERNETES_API": kubernetes.url, "ACCOUNT": str(account)}
        environment = {name: VARIABLES[name] for name in ("PODS", "SELECTOR")} | given
        command = [sys.executable, *CONTAINER["command"][1:]]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    return ran, kubernetes


@pytest.mark.slow
def test_streams_go_on_behind_a_router_when_a_server_is_ended(servers: list[Server], tmp_path: Path) -> None:
    with running_router(*(each.url for each in servers)) as router:
        until(lambda: sum(metric(router.url, "neuronserve_route_replica_up").values()) == 2)
        ran, kubernetes = run(router.url, servers, tmp_path)
        lost = sum(metric(router.url, "neuronserve_route_lost_requests_total").values())
        alone, asked_once = run(router.url, servers[1:], tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "fake: server-0 has ended, 8 of 8 open streams went on\n"
    assert lost > 0
    assert kubernetes.asked == [
        ("GET", "/api/v1/namespaces/ns/pods", "token-of-the-test"),
        ("DELETE", "/api/v1/namespaces/ns/pods/server-0", "token-of-the-test"),
    ]
    assert (alone.returncode, len(asked_once.asked)) == (0, 1)  # the last server is not ended
    assert alone.stdout.startswith("not tried: 1 server is ready")


def test_a_server_waits_for_all_of_its_stages() -> None:
    (waiting,) = pods(golden("leaderworkerset"))[0]["spec"]["initContainers"]
    with socket.create_server(("127.0.0.1", 0)) as first, socket.socket() as second:
        second.bind(("127.0.0.1", 0))  # a stage that does not listen yet
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (first, second)]
        command = [sys.executable, *waiting["command"][1:], *addresses]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(f"{addresses[1]}: ")
            second.listen()
            assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(("states", "code"), [("ALIVE ALIVE ALIVE", 0), ("ALIVE ALIVE DEAD", 1), ("", 1)])
def test_rays_head_is_ready_when_its_workers_have_joined(states: str, code: int) -> None:
    """The answer is that of Ray 2.60's state API."""
    nodes = [{"state": "ALIVE", "is_head_node": True}]
    nodes += [{"state": each, "is_head_node": False} for each in states.split()]
    tokens = []

    class Dashboard(Quiet):
        def do_GET(self) -> None:
            tokens.append((self.path, self.headers["Authorization"]))
            self.answer({"result": True, "msg": "", "data": {"result": {"total": len(nodes), "result": nodes}}})

    head = pods(golden("rayservice"))[1]["spec"]["containers"][0]
    program, flag, script, count = head["startupProbe"]["exec"]["command"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Dashboard) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        script = script.replace("127.0.0.1:8265", f"127.0.0.1:{server.server_port}")
        command = [program.replace("python", sys.executable), flag, script, count]
        ran = subprocess.run(command, env={"RAY_AUTH_TOKEN": "secret"}, capture_output=True, text=True, check=False)
        server.shutdown()
    assert (ran.returncode, tokens) == (code, [("/api/v0/nodes", "Bearer secret")]), ran.stderr
    assert code == 0 or f"{states.count('ALIVE')} of 3 workers have joined" in ran.stderr


@pytest.mark.slow
def test_the_test_fails_where_nothing_continues_streams(servers: list[Server], tmp_path: Path) -> None:
    assert run(servers[0].url, servers, tmp_path)[0].returncode == 1
