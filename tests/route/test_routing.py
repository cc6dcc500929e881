"""`neuronserve route` in front of two servers: who gets what, and what a client sees when one of them goes."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from neuronserve.server.errors import SettingsError
from neuronserve.server.settings.route import RouteSettings
from neuronserve.server.settings.sources import load_settings
from tests.api.serving import Server, running_server, until
from tests.route.routers import metric, replicas, running_router

REQUESTS = "neuronserve_route_requests_total"
UP = "neuronserve_route_replica_up"
OPEN = "neuronserve_route_open_tokens"
NO_PATH = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture(scope="module")
def servers(checkpoint: Path) -> Iterator[Sequence[Server]]:
    with replicas(checkpoint, 2, "--device", "slow:0.005", "--api-key", "k") as running:
        yield running


@pytest.fixture(scope="module")
def router(servers: Sequence[Server]) -> Iterator[Server]:
    with running_router(*(server.url for server in servers)) as running:
        yield running


def client(server: Server, key: str = "k") -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=60, headers={"Authorization": f"Bearer {key}"})


def chat(content: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": [{"role": "user", "content": content}], "max_tokens": 12, "seed": 1, **more}


def without_times(answer: httpx.Response) -> Any:
    body = answer.json()
    return {key: value for key, value in body.items() if not key.startswith("created")}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat(n=2, logprobs=True)),
        ("/v1/completions", {"model": "fake", "prompt": ["a", "b"], "max_tokens": 5, "seed": 2}),
        ("/v1/messages", {"model": "fake", "messages": chat()["messages"], "max_tokens": 5}),
        ("/v1/chat/completions", chat(model="other")),
        ("/tokenize", {"model": "fake", "prompt": "abc"}),
    ],
)
def test_answers_are_those_of_a_replica(servers: Sequence[Server], router: Server, path: str, body: Any) -> None:
    given = {"X-Request-Id": "mine"}
    with client(router) as routed, client(servers[0]) as direct:
        answers = [each.post(path, json=body, headers=given) for each in (routed, direct)]
    assert answers[0].status_code == answers[1].status_code
    assert without_times(answers[0]) == without_times(answers[1])
    assert answers[0].headers["x-request-id"] == "mine"
    assert answers[0].headers.get_list("content-length") == answers[1].headers.get_list("content-length")


def test_a_stream_is_that_of_a_replica_without_the_routers_own_comments(
    servers: Sequence[Server], router: Server
) -> None:
    texts = []
    for server in (router, servers[0]):
        with client(server) as each:
            answer = each.post("/v1/chat/completions", json=chat(stream=True), headers={"X-Request-Id": "mine"})
        texts.append([line.partition('"choices"')[2] for line in answer.text.splitlines()])
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert not any(name.startswith("x-neuronserve") for name in answer.headers)
    assert texts[0] == texts[1]


def test_keys_are_the_replicas(router: Server) -> None:
    with client(router, "wrong") as wrong:
        assert wrong.post("/v1/chat/completions", json=chat()).status_code == 401
        assert wrong.get("/health").status_code == 200


def test_a_conversation_stays_and_other_requests_are_spread(router: Server) -> None:
    with client(router) as each:
        before = metric(router.url, REQUESTS)
        turns: list[dict[str, str]] = []
        for turn in range(4):
            turns.append({"role": "user", "content": f"{turn}" * 600})
            each.post("/v1/chat/completions", json=chat() | {"messages": turns, "truncate_prompt_tokens": 100})
        middle = metric(router.url, REQUESTS)
        assert sorted(middle[name] - before.get(name, 0) for name in middle) == [0, 4]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: each.post("/v1/chat/completions", json=chat(f"{i}" * 100)), range(8)))
        after = metric(router.url, REQUESTS)
        assert sorted(after[name] - middle[name] for name in after) == [4, 4]
    until(lambda: set(metric(router.url, OPEN).values()) == {0})


def test_stored_responses_are_found_wherever_they_are(router: Server) -> None:
    with client(router) as each:
        made = [
            each.post("/v1/responses", json={"model": "fake", "input": f"{i}" * 99, "max_output_tokens": 4}).json()[
                "id"
            ]
            for i in range(4)
        ]
        assert [each.get(f"/v1/responses/{name}").status_code for name in made] == [200] * 4
        following = {"model": "fake", "input": "and", "max_output_tokens": 4}
        answers = [each.post("/v1/responses", json={**following, "previous_response_id": name}) for name in made]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert each.get("/v1/responses/resp_none").status_code == 404


def test_limits_of_the_router_are_its_own(servers: Sequence[Server]) -> None:
    with running_router(servers[0].url, "--max-body-bytes", "2000") as router, client(router) as each:
        assert each.post("/v1/chat/completions", json=chat("x" * 2000)).status_code == 413
        assert each.post("/v1/chat/completions", json=chat(), headers={"Host": "evil.example"}).status_code == 403
        assert each.post("/v1/chat/completions", json=chat(), headers={"Origin": "http://a"}).status_code == 403
        assert each.post("/v1/chat/completions", content=iter([b"x" * 1500] * 2)).status_code == 413


def test_operators_commands_reach_all_replicas_and_only_from_this_host(checkpoint: Path) -> None:
    with replicas(checkpoint, 2) as servers, running_router(*(each.url for each in servers)) as router:
        assert httpx.post(f"{router.url}/reset_prefix_cache").status_code == 200
        forwarded = httpx.post(f"{router.url}/reset_prefix_cache", headers={"X-Forwarded-For": "192.0.2.1"})
        assert forwarded.status_code == 403


def test_replicas_come_and_go_with_the_file_and_open_streams_end_in_peace(
    servers: Sequence[Server], tmp_path: Path
) -> None:
    file = tmp_path / "replicas"
    file.write_text(f"# all\n{servers[0].url}\n")
    with running_router("--replicas-file", str(file)) as router, client(router) as each:
        with each.stream(
            "POST", "/v1/chat/completions", json=chat(stream=True, max_tokens=300, ignore_eos=True)
        ) as open_:
            lines = open_.iter_lines()
            next(lines)
            file.write_text(f"{servers[1].url}  # the other\n")
            until(lambda: metric(router.url, UP) == {servers[0].url: 0, servers[1].url: 1})
            assert each.post("/v1/chat/completions", json=chat()).status_code == 200
            assert list(lines)[-2] == "data: [DONE]"
        file.write_text("no address\n")
        time.sleep(1.5)  # it is looked at once a second; nothing may change
        assert metric(router.url, UP)[servers[1].url] == 1
        assert metric(router.url, REQUESTS) == {servers[0].url: 1, servers[1].url: 1}


def test_a_request_whose_replica_dies_is_answered_by_the_other(checkpoint: Path) -> None:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(6) as pool:
        servers = stack.enter_context(replicas(checkpoint, 2, "--device", "slow:0.02"))
        router = stack.enter_context(running_router(*(each.url for each in servers)))
        url, body = f"{router.url}/v1/chat/completions", chat(max_tokens=60, ignore_eos=True)
        expected = httpx.post(f"{servers[0].url}/v1/chat/completions", json=body, timeout=60).json()["choices"]
        answers = [pool.submit(httpx.post, url, json=body, timeout=60) for _ in range(6)]
        until(lambda: all(metric(router.url, OPEN).values()))
        servers[0].process.kill()
        assert [each.result().json()["choices"] for each in answers] == [expected] * 6
        until(lambda: metric(router.url, UP)[servers[0].url] == 0)
        assert httpx.post(url, json=body, timeout=60).status_code == 200


def test_without_a_replica_requests_wait_and_are_refused(checkpoint: Path) -> None:
    with running_server(checkpoint) as server, running_router(server.url, "--max-wait", "0.2") as router:
        server.signal(signal.SIGKILL)
        server.wait()
        answer = httpx.post(f"{router.url}/v1/chat/completions", json=chat(), timeout=60)
        assert answer.status_code in {502, 503}
        again = httpx.post(f"{router.url}/v1/messages", json=chat(), timeout=60)
        assert (again.status_code, again.json()["error"]["type"]) == (503, "overloaded_error")
        assert httpx.get(f"{router.url}/health/ready").status_code == 503
        assert httpx.get(f"{router.url}/health/live").status_code == 200


@contextlib.contextmanager
def other_server(*parts: bytes) -> Iterator[str]:
    """A server of another make: it answers each request with `parts`, and closes the connection."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    asked = connection.recv(65536)
                    connection.sendall(
                        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
                        if b"/health" in asked
                        else b"".join(parts)
                    )

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_broken_stream_of_a_server_that_cannot_resume_ends_with_an_error_event(path: str) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    with other_server(head, b"b\r\ndata: {}\n\n \r\n") as address, running_router(address) as router:
        answer = httpx.post(f"{router.url}{path}", json=chat(stream=True), timeout=60)
    assert answer.text.startswith("data: {}\n\n")
    error = json.loads(answer.text.strip().splitlines()[-1].removeprefix("data: "))["error"]
    assert "replica" in error["message"]
    assert ("code" not in error) is (path == "/v1/messages")


def test_an_answer_of_http_1_0_ends_with_its_connection() -> None:
    answer = b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nhello"
    with other_server(answer) as address, running_router(address) as router:
        assert httpx.get(f"{router.url}/anything").text == "hello"


class KeptConnections(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    num_made = 0

    def setup(self) -> None:
        KeptConnections.num_made += 1
        super().setup()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")


def test_a_replicas_connection_is_used_again() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), KeptConnections) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            with running_router(f"127.0.0.1:{server.server_port}") as router, client(router) as each:
                assert [each.get("/anything").text for _ in range(20)] == ["ok"] * 20
                assert KeptConnections.num_made < 10  # a probe beside a request has another one
        finally:
            server.shutdown()


def test_settings_name_what_is_missing() -> None:
    with pytest.raises(SettingsError, match="no replicas"):
        load_settings(RouteSettings, [])
