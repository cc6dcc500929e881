"""A server's life: loading, ready, draining, the death of its engine; and its access control."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.api.serving import Server, children, is_running, running_server, until

TEXT = "/v1/completions"
LONG = {"prompt": "a", "max_tokens": 400, "ignore_eos": True}
SLOW = ("--device", "slow:0.02", "--max-num-seqs", "4")


def events(response: httpx.Response) -> Iterator[str]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")


def status(url: str, path: str) -> int:
    return httpx.get(url + path, timeout=60).status_code


def test_ready_server_answers_its_probes(http: httpx.Client) -> None:
    for path in ("/health", "/health/live", "/health/ready"):
        response = http.get(path)
        assert (response.status_code, response.json()) == (200, {"status": "ready"})
    assert set(http.get("/version").json()) == {"version"}


def test_a_stream_has_the_headers_proxies_need(http: httpx.Client) -> None:
    response = http.post(TEXT, json={"prompt": "a", "max_tokens": 2, "stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.text.endswith("data: [DONE]\n\n")


def test_request_ids_are_echoed_or_made(http: httpx.Client) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    response = http.post(TEXT, json=body, headers={"X-Request-Id": "my-id"})
    assert response.headers["x-request-id"] == "my-id"
    assert response.json()["id"] == "cmpl-my-id"
    for bad in ("x" * 129, "two words"):
        made = http.get("/version", headers={"X-Request-Id": bad}).headers["x-request-id"]
        assert made not in {bad, ""}
    assert http.post(TEXT, json={}).headers["x-request-id"]


def test_one_request_id_may_be_used_twice_at_a_time(server: Server) -> None:
    codes: list[int] = []

    def ask() -> None:
        response = httpx.post(server.url + TEXT, json=LONG, headers={"X-Request-Id": "same"}, timeout=60)
        codes.append(response.status_code)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert codes == [200] * 4


def test_the_page_about_the_api_describes_every_body(http: httpx.Client) -> None:
    page = http.get("/openapi.json").json()
    names = set(page["components"]["schemas"])
    refs = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(page)))
    assert {"ChatRequest", "CompletionRequest", "ChatCompletion"} <= refs <= names
    assert "#/$defs/" not in json.dumps(page)
    for operations in page["paths"].values():
        for operation in operations.values():
            failures = {code: each for code, each in operation["responses"].items() if int(code) >= 400}
            assert all([*each["content"]] == ["application/json"] for each in failures.values())
    page = http.get("/docs").text
    assert not re.search(r'(src|href)="(?!/|data:)', page)  # all of it from here
    for name in re.findall(r'(?:src|href)="(/docs/.+?)"', page):
        assert http.get(name).status_code == 200


def test_tokenize_and_back(http: httpx.Client) -> None:
    answer = http.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    assert (answer["count"], len(answer["token_strs"]), answer["max_model_len"]) == (3, 3, 512)
    assert http.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": "hé", "content": "hé"}
    chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "hi"}]}).json()
    text = http.post("/detokenize", json={"tokens": chat["tokens"]}).json()["prompt"]
    assert text == "<|start|>user\nhi<|end|><|start|>assistant\n"


def test_the_last_message_can_be_continued(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well"}]
    chat = http.post("/tokenize", json={"messages": messages, "continue_final_message": True}).json()
    text = http.post("/detokenize", json={"tokens": chat["tokens"]}).json()["prompt"]
    assert text.endswith("<|start|>assistant\nWell")


@pytest.mark.slow
def test_a_template_that_loops_costs_one_request_and_not_the_others(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "loop"}]
    response = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "chat_template_error")
    messages[0]["content"] = "fine"
    assert http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).status_code == 200


def test_only_the_api_port_listens(server: Server) -> None:
    """No process of the server listens on TCP but the API, and that on loopback."""
    pids = [server.process.pid, *children(server.process.pid)]
    inodes = {
        os.readlink(link).removeprefix("socket:[").removesuffix("]")
        for pid in pids
        for link in Path(f"/proc/{pid}/fd").iterdir()
        if os.path.islink(link) and os.readlink(link).startswith("socket:[")
    }
    listening = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening.add(fields[1])
    assert listening == {f"0100007F:{server.port:04X}"}


def test_keys_guard_all_but_probes(checkpoint: Path) -> None:
    with running_server(checkpoint, "--api-key", "first", "--api-key", "second") as server:
        for key in ("first", "second"):
            header = {"Authorization": f"Bearer {key}"}
            assert httpx.get(server.url + "/v1/models", headers=header).status_code == 200
        for bad in ({}, {"Authorization": "Bearer third"}, {"Authorization": "first"}, {"Authorization": "Bearer"}):
            for path in ("/v1/models", "/v1/nothing", "/v1"):
                response = httpx.get(server.url + path, headers=bad)
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
        assert httpx.post(server.url + TEXT, json=LONG).status_code == 401
        assert httpx.post(server.url + "/admin/restart-engine").status_code == 401
        for path in ("/metrics", "/inventory", "/tokenizer_info", "/console/events"):
            assert status(server.url, path) == 401
        for path in (
            "/health/ready",
            "/health/live",
            "/version",
            "/load",
            "/",
            "/static/js/console.js",
            "/docs",
            "/openapi.json",
        ):
            assert status(server.url, path) == 200


@pytest.mark.slow
def test_keys_of_a_file_are_keys_too(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\N{BOM}second\n\n third \n")  # as editors of Windows write it
    with running_server(checkpoint, "--api-key", "first", "--api-key-file", str(file)) as server:
        for key, code in {"first": 200, "second": 200, "third": 200, "fourth": 401}.items():
            header = {"Authorization": f"Bearer {key}"}
            assert httpx.get(server.url + "/v1/models", headers=header).status_code == code


@pytest.mark.slow
def test_browsers_may_call_only_from_allowed_origins(checkpoint: Path, server: Server) -> None:
    ask = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in httpx.options(server.url + TEXT, headers=ask).headers
    with running_server(checkpoint, "--allowed-origins", "https://app.example", "--api-key", "k") as open_server:
        preflight = httpx.options(open_server.url + TEXT, headers=ask)
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        refused = httpx.get(open_server.url + "/v1/models", headers={"Origin": "https://app.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.example"  # the page can read why
        other = httpx.options(open_server.url + TEXT, headers={**ask, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers


def test_a_full_queue_is_429_and_the_rest_goes_on(checkpoint: Path) -> None:
    with running_server(checkpoint, *SLOW, "--max-num-queued-reqs", "2") as server:
        with httpx.stream("POST", server.url + TEXT, json={**LONG, "n": 2, "stream": True}, timeout=60) as running:
            lines = events(running)
            next(lines)
            refused = httpx.post(server.url + TEXT, json=LONG)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "queue_full"
            next(lines)
        until(lambda: httpx.post(server.url + TEXT, json={"prompt": "a", "max_tokens": 1}).status_code == 200)


@pytest.mark.slow
def test_a_killed_engine_that_is_not_to_be_restarted_ends_streams_and_readiness(checkpoint: Path) -> None:
    with running_server(checkpoint, *SLOW, "--max-engine-restarts", "0") as server:
        with httpx.stream("POST", server.url + TEXT, json={**LONG, "stream": True}, timeout=60) as response:
            lines = events(response)
            next(lines)
            pid = server.engine_pid
            os.kill(pid, signal.SIGKILL)
            rest = list(lines)
        assert rest[-1] == "[DONE]"
        assert json.loads(rest[-2])["error"]["code"] == "engine_dead"
        for path in ("/health/ready", "/health", "/health/live"):
            assert httpx.get(server.url + path).json() == {"status": "dead"}
            assert status(server.url, path) == 503
        refused = httpx.post(server.url + TEXT, json=LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_dead")
        server.signal(signal.SIGTERM)
        assert server.wait() == 1
        words = server.last_words()
    death = f"the engine (pid {pid}) was killed by SIGKILL"
    assert f" ERROR {death}; 1 open sequences end with an error" in words
    assert " ERROR the server is dead: 0 of 1 engines left" in words
    assert words.splitlines()[-1] == f"neuronserve: error: an engine was lost while the server ran: {death}"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="engines are not forked")
def test_an_engine_whose_fork_server_is_killed_is_followed_and_does_not_stay(checkpoint: Path) -> None:
    with running_server(checkpoint, *SLOW) as server:
        first = server.engine_pid
        with httpx.stream("POST", server.url + TEXT, json={**LONG, "max_tokens": 300, "stream": True}) as response:
            lines = events(response)
            next(lines)
            os.kill(psutil.Process(first).ppid(), signal.SIGKILL)
            rest = list(lines)
        assert (rest[-1], json.loads(rest[-2])["choices"][0]["finish_reason"]) == ("[DONE]", "length")
        until(lambda: not is_running(first))
        assert server.engine_pid != first


@pytest.mark.parametrize("way", [pytest.param("signal", marks=pytest.mark.slow), "request"])
def test_a_restart_loses_no_request(checkpoint: Path, way: str) -> None:
    with running_server(checkpoint, *SLOW) as server:
        first = server.engine_pid
        with httpx.stream("POST", server.url + TEXT, json={**LONG, "max_tokens": 300, "stream": True}) as response:
            lines = events(response)
            next(lines)
            if way == "signal":
                server.signal(signal.SIGHUP)
            else:
                assert httpx.post(server.url + "/admin/restart-engine").json() == {"restarting": 1}
            rest = list(lines)
        assert (rest[-1], json.loads(rest[-2])["choices"][0]["finish_reason"]) == ("[DONE]", "length")
        until(lambda: first not in server.engine_pids and status(server.url, "/health/ready") == 200)
        assert status(server.url, "/health/live") == 200


def test_sigterm_lets_running_requests_finish(checkpoint: Path, hold: Path) -> None:
    with running_server(checkpoint, "--device", f"hold:{hold}") as server:
        pids = [server.process.pid, *children(server.process.pid)]
        body = {**LONG, "max_tokens": 60, "stream": True, "stream_options": {"include_usage": True}}
        with httpx.stream("POST", server.url + TEXT, json=body, timeout=60) as response:
            lines = events(response)
            next(lines)
            server.signal(signal.SIGTERM)
            until(lambda: status(server.url, "/health/ready") == 503)
            assert status(server.url, "/health/live") == 200
            refused = httpx.post(server.url + TEXT, json=LONG)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert refused.headers["retry-after"] == "1"
            hold.unlink()
            rest = list(lines)
        assert rest[-1] == "[DONE]"
        assert json.loads(rest[-2])["usage"]["completion_tokens"] == 60
        assert "connection" not in response.headers  # it had begun before
        assert server.wait() == 0
        until(lambda: not any(map(is_running, pids)))


@pytest.mark.slow
def test_answers_while_draining_close_their_connection(checkpoint: Path, hold: Path) -> None:
    """Answers of open and of refused requests; the client's next request goes elsewhere."""
    with (
        running_server(checkpoint, "--device", f"hold:{hold}") as server,
        ThreadPoolExecutor(1) as pool,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        assert "connection" not in client.get("/health").headers
        answer = pool.submit(httpx.post, server.url + TEXT, json={**LONG, "max_tokens": 60}, timeout=60)
        until(lambda: httpx.get(f"{server.url}/load").json()["server_load"] == 1)
        server.signal(signal.SIGTERM)
        until(lambda: status(server.url, "/health/ready") == 503)
        for response in (client.get("/health"), client.post(TEXT, json=LONG), client.get("/nowhere")):
            assert response.headers["connection"] == "close"
        hold.unlink()
        assert (answer.result().status_code, answer.result().headers["connection"]) == (200, "close")
        assert server.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["timeout", "second signal"])
def test_what_does_not_finish_is_ended_with_an_error(checkpoint: Path, how: str) -> None:
    timeout = "0.2" if how == "timeout" else "60"
    with running_server(checkpoint, *SLOW, "--shutdown-timeout", timeout) as server:
        pids = [server.process.pid, *children(server.process.pid)]
        with httpx.stream("POST", server.url + TEXT, json={**LONG, "stream": True}, timeout=60) as response:
            lines = events(response)
            next(lines)
            server.signal(signal.SIGTERM)
            if how == "second signal":
                until(lambda: status(server.url, "/health/ready") == 503)
                server.signal(signal.SIGINT)
            rest = list(lines)
        assert rest[-1] == "[DONE]"
        assert json.loads(rest[-2])["error"]["code"] == "draining"
        assert server.wait() == 0
        why = "0.2 s are over" if how == "timeout" else "a second signal"
        assert f" WARNING draining ends: {why}; 1 open sequences end with an error" in server.last_words()
        until(lambda: not any(map(is_running, pids)))
