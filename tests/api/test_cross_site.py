"""Requests that web pages make a browser send: other origins, names that resolve to this host, and bad heads."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from neuronserve.console.pages import pages_router
from neuronserve.console.plan_routes import PlanPage, plan_router
from neuronserve.console.question import Defaults, InForce
from neuronserve.server.api.app import MODULES
from neuronserve.server.api.http.cross_site import SAFE
from neuronserve.server.api.http.host_names import names_of
from neuronserve.server.device.catalog import CatalogConfig
from tests.api.serving import Server, running_server

EVIL = "https://evil.example"
OPERATORS = "/reset_prefix_cache"
PLAN = plan_router(PlanPage(InForce(CatalogConfig()), Defaults("a", "a")))
ROUTERS = (*(module.router for module in MODULES), pages_router(), PLAN)
CHANGING = sorted(
    (method, str(getattr(route, "path", "")))
    for router in ROUTERS
    for route in router.routes
    for method in getattr(route, "methods", None) or ()
    if method not in SAFE
)


def code(answer: httpx.Response) -> tuple[int, str]:
    found = answer.json()
    return answer.status_code, found["error"].get("code") or found["error"]["type"]


@pytest.fixture(scope="module")
def lan_server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that listens on all addresses, and lets any page call."""
    options = ("--host", "0.0.0.0", "--allowed-origins", "*", "--data-dir", str(tmp_path_factory.mktemp("data")))
    with running_server(checkpoint, *options) as running:
        yield running


def test_every_route_that_changes_something_is_in_the_table() -> None:
    assert len(CHANGING) > 25
    assert {("POST", "/admin/restart-engine"), ("DELETE", "/v1/files/{file_id}"), ("POST", "/console/plan")} <= set(
        CHANGING
    )


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), CHANGING)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": EVIL},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},  # another program of this host
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:1"},
    ],
)
def test_pages_of_other_origins_change_nothing(
    http: httpx.Client, method: str, path: str, headers: dict[str, str]
) -> None:
    sent = {"content-type": "text/plain", **headers}
    answer = http.request(method, path.replace("{", "").replace("}", ""), content="{}", headers=sent)
    advice = f"--allowed-origins {headers.get('origin', 'ORIGIN')}"
    if path.startswith("/api/"):  # Ollama's errors are a text
        assert (answer.status_code, advice in answer.json()["error"]) == (403, True)
        return
    found = code(answer)
    assert found in ((403, "cross_origin"), (403, "permission_error"))  # the latter of Anthropic's paths
    assert advice in answer.json()["error"]["message"]


def test_the_servers_own_pages_and_clients_that_are_no_browsers_may(server: Server, http: httpx.Client) -> None:
    own = {"origin": server.url}
    for headers in ({}, own, {**own, "sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):
        assert http.post(OPERATORS, headers=headers).status_code == 200
    assert http.get("/v1/models", headers={"origin": EVIL, "sec-fetch-site": "cross-site"}).status_code == 200


def test_a_preflight_says_how_to_let_pages_call(http: httpx.Client) -> None:
    ask = {"Origin": EVIL, "Access-Control-Request-Method": "POST"}
    answer = http.options("/v1/chat/completions", headers=ask)
    assert code(answer) == (403, "cross_origin")
    assert f"--allowed-origins {EVIL}" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/files", "/v1/models", "/metrics", "/", "/console/events", "/health"])
@pytest.mark.parametrize("name", ["attacker.example", "attacker.example:8000", "localhost.attacker.example", "0x7f.1"])
def test_names_of_others_are_refused_on_loopback(http: httpx.Client, path: str, name: str) -> None:
    answer = http.get(path, headers={"host": name})
    assert code(answer) == (403, "host_not_allowed")
    assert f"--allowed-hosts {name.partition(':')[0]}" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.8.0.1:80", "[::1]:8000", "a.localhost"])
def test_names_of_this_host_are_taken(http: httpx.Client, name: str) -> None:
    assert http.get("/v1/files", headers={"host": name}).status_code == 200


@pytest.mark.parametrize("name", ["a b", "user@localhost", "localhost/x", "localhost:port", "[::1", "a?b"])
def test_what_is_no_name_is_refused(http: httpx.Client, name: str) -> None:
    assert http.get("/v1/models", headers={"host": name}).status_code == 400


@pytest.mark.slow
def test_other_names_may_be_allowed(checkpoint: Path) -> None:
    with running_server(checkpoint, "--allowed-hosts", "llm.example", "--allowed-hosts", "other.example") as server:
        for name, status in {
            "llm.example": 200,
            "Other.Example:80": 200,
            "localhost": 200,
            "evil.example": 403,
        }.items():
            assert httpx.get(f"{server.url}/v1/models", headers={"host": name}).status_code == status


def test_which_names_are_known() -> None:
    assert names_of("127.0.0.1") == ("127.0.0.1",)
    assert names_of("localhost", ("A.example",)) == ("localhost", "a.example")
    assert names_of("0.0.0.0") is None
    assert names_of("0.0.0.0", ("a.example",)) == ("0.0.0.0", "a.example")
    assert names_of("127.0.0.1", ("*",)) is None


def own_address() -> str | None:
    """An address of this host that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        return str(probe.getsockname()[0])


def test_operators_paths_without_a_key_are_for_this_host(lan_server: Server) -> None:
    local = f"http://127.0.0.1:{lan_server.port}"
    assert httpx.post(local + OPERATORS).status_code == 200
    proxied = httpx.post(local + OPERATORS, headers={"x-forwarded-for": "198.51.100.7"})
    assert code(proxied) == (403, "insufficient_permissions")
    assert "--admin-api-key" in proxied.json()["error"]["message"]
    if (address := own_address()) is not None:
        elsewhere = f"http://{address}:{lan_server.port}"
        assert httpx.get(elsewhere + "/v1/models").status_code == 200
        assert code(httpx.post(elsewhere + OPERATORS)) == (403, "insufficient_permissions")


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="only Linux says whose a socket is")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who may give a socket to another user")
def test_operators_paths_without_a_key_are_not_for_other_users_of_this_host(lan_server: Server) -> None:
    for request, status in ((f"POST {OPERATORS}", 403), ("GET /v1/models", 200)):
        with socket.create_connection(("127.0.0.1", lan_server.port)) as connection:
            os.fchown(connection.fileno(), 65534, -1)
            connection.sendall(f"{request} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
            assert connection.recv(4096).startswith(f"HTTP/1.1 {status} ".encode())


def test_any_origin_is_none_for_operators_paths(lan_server: Server) -> None:
    local = f"http://127.0.0.1:{lan_server.port}"
    ask = {"Origin": EVIL, "Access-Control-Request-Method": "POST"}
    assert httpx.options(local + "/v1/completions", headers=ask).headers["access-control-allow-origin"] == "*"
    assert httpx.post(local + "/v1/completions", json={"prompt": "a"}, headers={"Origin": EVIL}).status_code == 200
    assert code(httpx.post(local + OPERATORS, headers={"Origin": EVIL})) == (403, "cross_origin")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 200),
        ("GET /version HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        ("GET /version HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
        ("GET /version HTTP/1.1\r\nHost: localhost\r\nhOST: evil.example\r\nConnection: close\r\n\r\n", 400),
        ("GET /version HTTP/1.0\r\n\r\n", 200),
        ("GET /version HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: identity\r\n\r\n", 400),
    ],
)
def test_heads_that_proxies_may_read_in_another_way_are_refused(server: Server, head: str, status: int) -> None:
    data = b""
    with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
        connection.sendall(head.encode())
        while part := connection.recv(65536):
            data += part
    first, _, body = data.partition(b"\r\n\r\n")
    assert first.split(b" ", 2)[1] == str(status).encode(), data
    if status == 400 and first.lower().count(b"content-type: application/json"):
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
