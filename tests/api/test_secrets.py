"""Keys and prompts are nowhere but where they belong: not in logs, traces, pages, process lists or last words."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.serving import Server, children, command_line, environment, run_command, running_server, until

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
PAGES = (
    "/inventory",
    "/server_info",
    "/metrics",
    "/openapi.json",
    "/health",
    "/version",
    "/v1/models",
    "/v1/usage",
    "/load",
)
GIVEN, OF_FILE, WRONG, PROMPT = "s3cret-given", "s3cret-of-a-file", "s3cret-and-wrong", "pr0mpt-of-a-person"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def written(server: Server, traces: Path) -> Iterator[tuple[str, str]]:
    """Texts that a server shows, with their places: after requests of all outcomes, an engine's crash, and its end."""
    body = {"prompt": PROMPT, "max_tokens": 4, "user": PROMPT}
    with httpx.Client(base_url=server.url, timeout=120) as client:
        assert client.post("/start_profile", headers=bearer(OF_FILE)).status_code == 200
        assert client.post(TEXT, json=body, headers=bearer(GIVEN)).status_code == 200
        chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4, "stream": True}
        assert client.post(CHAT, json=chat, headers=bearer(OF_FILE)).status_code == 200
        assert client.post(TEXT, json={**body, "n": "two"}, headers=bearer(GIVEN)).status_code == 400
        assert client.post(TEXT, content=json.dumps(body)[:-1], headers=bearer(GIVEN)).status_code in {400, 415}
        refused = client.post(TEXT, json=body, headers=bearer(WRONG))
        assert refused.status_code == 401
        yield "the refusal", refused.text
        assert client.post("/stop_profile", headers=bearer(OF_FILE)).status_code == 200
        first = server.engine_pid
        os.kill(first, signal.SIGSEGV)
        until(lambda: first not in server.engine_pids and client.get("/health/ready").status_code == 200)
        assert client.post(TEXT, json=body, headers=bearer(GIVEN)).status_code == 200
        for page in PAGES:
            answer = client.get(page, headers=bearer(GIVEN))
            assert answer.status_code == 200
            yield page, answer.text
    found = run_command("ls", "--url", server.url, "--json", env=environment(NEURONSERVE_API_KEY=GIVEN))
    assert found.returncode == 0, found.stderr
    yield "ls", found.stdout
    for pid in children(server.process.pid):
        yield f"process {pid}", command_line(pid).decode()
    files = [file for file in traces.rglob("*") if file.is_file()]
    assert files
    for file in files:
        yield file.name, file.read_bytes().decode(errors="replace")
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    log = server.log + server.last_words()
    assert "SIGSEGV" in log
    yield "the log", log


@pytest.mark.parametrize("way", ["flag", "environment"])
def test_keys_and_prompts_are_not_shown(checkpoint: Path, tmp_path: Path, way: str) -> None:
    keys, traces = tmp_path / "keys", tmp_path / "traces"
    keys.write_text(OF_FILE + "\n")
    traces.mkdir()
    argv = ["--log-level", "debug", "--trace-dir", str(traces), "--api-key-file", str(keys)]
    argv += ["--api-key", GIVEN] if way == "flag" else []
    env = environment() if way == "flag" else environment(NEURONSERVE_API_KEY=GIVEN)
    with running_server(checkpoint, *argv, env=env) as server:
        for place, text in written(server, traces):
            for secret in (GIVEN, OF_FILE, WRONG, PROMPT):
                assert secret not in text, f"{secret} is in {place}"
