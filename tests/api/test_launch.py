"""`neuronserve launch` over a real server; programs in place of the agents say what they were given."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from neuronserve import COMMAND
from neuronserve.server.chat.agents import AGENTS
from tests.api.serving import Server

SHOW = """#!/bin/sh
for each in "$@"; do echo "arg $each"; done
env | grep -E "^(ANTHROPIC|OPENAI)_"
"""


def launch(bin_dir: Path | None, *args: str) -> subprocess.CompletedProcess[str]:
    path = os.environ["PATH"] if bin_dir is None else f"{bin_dir}:{os.environ['PATH']}"
    return subprocess.run(
        [*COMMAND, "launch", *args], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    for name in AGENTS:
        (tmp_path / name).write_text(SHOW)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_claude_gets_the_server_the_model_and_its_own_arguments(server: Server, agents: Path) -> None:
    ended = launch(agents, "claude", "--url", f"{server.url}/v1", "--", "-p", "a b")
    assert ended.returncode == 0, ended.stderr
    lines = set(ended.stdout.splitlines())
    assert {"arg -p", "arg a b", f"ANTHROPIC_BASE_URL={server.url}", "ANTHROPIC_MODEL=fake"} <= lines
    assert "ANTHROPIC_API_KEY=none" in lines


def test_codex_gets_a_provider(server: Server, agents: Path) -> None:
    ended = launch(agents, "codex", "--url", server.url, "--api-key", "k", "--model", "mine", "--", "exec", "hello")
    assert ended.returncode == 0, ended.stderr
    assert 'arg model="mine"' in ended.stdout
    assert f'base_url="{server.url}/v1", wire_api="responses"' in ended.stdout
    assert "arg exec\narg hello\n" in ended.stdout
    assert "OPENAI_API_KEY=k" in ended.stdout


def test_a_dry_run_prints_what_a_shell_takes(server: Server, agents: Path) -> None:
    printed = launch(None, "claude", "--url", server.url, "--dry-run", "--", "-p", "it's")
    assert printed.returncode == 0, printed.stderr
    path = f"{agents}:{os.environ['PATH']}"
    ran = subprocess.run(["sh", "-c", printed.stdout], env={"PATH": path}, capture_output=True, text=True, check=True)
    assert "arg it's" in ran.stdout
    assert f"ANTHROPIC_BASE_URL={server.url}" in ran.stdout


def test_what_is_not_there_is_said(server: Server, tmp_path: Path) -> None:
    missing = subprocess.run(
        [*COMMAND, "launch", "claude", "--url", server.url],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert missing.returncode == 2
    assert "npm install -g @anthropic-ai/claude-code" in missing.stderr
    nobody = launch(None, "codex", "--url", "http://127.0.0.1:9")
    assert nobody.returncode != 0
    assert "no server answers" in nobody.stderr
    other = launch(None, "emacs")
    assert other.returncode == 2
    assert "claude" in other.stderr
