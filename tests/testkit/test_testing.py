"""`neuronserve.testing` and its ready file: present while a server is ready, removed when it has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from neuronserve.testing import ServerFailed, running, running_server
from tests.api.serving import command, environment, is_running, run_command, until


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch, kernel_cache: str) -> None:
    for name, value in environment(NEURONSERVE_KERNEL_CACHE_DIR=kernel_cache).items():
        monkeypatch.setenv(name, value)


def test_a_server_is_ready_in_the_block_and_gone_behind_it() -> None:
    """Where operators have a key too, so that the clients' key does not open the path of scripts."""
    with running_server(api_key="k", args=["--max-num-seqs", "2", "--admin-api-key=of-somebody"]) as server:
        assert is_running(server.pid)
        headers = {"Authorization": f"Bearer {server.api_key}"}
        refused = httpx.get(f"{server.base_url}/models")
        listed = httpx.get(f"{server.base_url}/models", headers=headers)
        assert (refused.status_code, listed.json()["data"][0]["id"]) == (401, server.model)
        assert server.env["ANTHROPIC_BASE_URL"] == server.url
        with server.script({"answer": "Paris."}):
            body = {"messages": [{"role": "user", "content": "The capital?"}]}
            given = httpx.post(f"{server.base_url}/chat/completions", json=body, headers=headers)
        assert given.json()["choices"][0]["message"]["content"] == "Paris."
        assert str(server.admin_key) not in repr(server)
    assert not is_running(server.pid)


@pytest.mark.thorough
def test_a_server_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(ServerFailed, match=r"ended with code 2:\n(.|\n)*no-such-device"),
        running_server(device="no-such-device"),
    ):
        pass


@pytest.mark.thorough
def test_a_server_that_is_never_ready_is_ended(checkpoint: Path) -> None:
    hanging = [*command("serve", str(checkpoint), "--device", "hang", "--port", "0")]
    with pytest.raises(ServerFailed, match="was not ready in 3 s"), running(hanging, timeout_s=3):
        pass


def test_the_file_is_whole_says_where_and_goes_with_the_server(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    file.write_text("{of a server that was killed")
    argv = command("serve", str(checkpoint), "--port", "0", "--served-model-name", "fake", "--ready-file", str(file))
    process = subprocess.Popen(argv, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: file.exists() and "killed" not in file.read_text())
        said = json.loads(file.read_text())
        assert (said["pid"], said["model"], said["url"]) == (process.pid, "fake", f"http://127.0.0.1:{said['port']}")
        assert httpx.get(said["url"] + "/health/ready").status_code == 200
        assert os.listdir(tmp_path) == ["ready.json"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not list(tmp_path.iterdir())
    finally:
        process.kill()
        process.wait()


@pytest.mark.thorough
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_loaded(checkpoint: Path, tmp_path: Path) -> None:
    ran = run_command("serve", str(checkpoint), "--port", "0", "--ready-file", str(tmp_path / "none" / "ready.json"))
    assert ran.returncode == 2
    assert "--ready-file: cannot write" in ran.stderr


def test_the_helper_imports_the_standard_library_alone() -> None:
    code = "import sys, neuronserve.testing; print([m for m in sys.modules if m in ('server', 'numpy', 'pytest')])"
    ran = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
