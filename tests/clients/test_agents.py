"""Coding agents of others, unmodified and with their default settings: a task from its start to its end.

The model is scripted: it writes the calls that the task has and then what the last tool answered, as the chat template
of `agents/` puts them together. What the agents send and what they do with the answers is their own. They run in
empty directories, with nothing of the environment but PATH.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import Server, running_server, write_checkpoint
from tests.clients.test_clients import MODULES, PATIENCE_S

TEMPLATE = Path(__file__).parent / "agents" / "template.jinja"
SECRET = "the moon is made of stone"
CONTEXT = 300_000  # tokens of one byte each: an agent's tools and rules alone have 60,000
CODEX = """
model = "fake"
model_provider = "here"
[model_providers.here]
name = "here"
base_url = "{url}/v1"
wire_api = "responses"
"""

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not MODULES.exists(), reason="the agents are not installed: `make client-test`"),
]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    options = ("--device", "echo", "--chat-template", str(TEMPLATE), "--max-model-len", str(CONTEXT))
    options += ("--num-gpu-blocks-override", "40000", "--max-num-batched-tokens", "65536", "--disable-access-log")
    with running_server(checkpoint, *options) as running:
        yield running


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with one file for the agent to read, and a home beside it."""
    (tmp_path / "home").mkdir()
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "note.txt").write_text(f"{SECRET}\n")
    return directory


def task(*calls: tuple[str, dict[str, Any]]) -> str:
    """A task that tells the scripted model what to call."""
    return "".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>" for name, arguments in calls
    )


def run(project: Path, command: list[str], **environment: str) -> str:
    """Run an agent to its end with success; returns its standard output."""
    binaries = f"{MODULES / '.bin'}:{os.environ['PATH']}"
    ended = subprocess.run(
        command,
        cwd=project,
        env={"PATH": binaries, "HOME": str(project.parent / "home"), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def claude(server: Server, project: Path, text: str) -> Any:
    """The result of Claude Code, as it reports it to scripts."""
    command = ["claude", "-p", text, "--output-format", "json", "--allowedTools", "Bash", "Write"]
    return json.loads(
        run(project, command, ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY="any", ANTHROPIC_MODEL="fake")
    )


def codex(server: Server, project: Path, text: str, *options: str) -> str:
    """The last message of Codex."""
    settings = project.parent / "home" / ".codex"
    settings.mkdir(exist_ok=True)
    (settings / "config.toml").write_text(CODEX.format(url=server.url))
    return run(project, ["codex", "exec", "--skip-git-repo-check", *options, text])


def test_claude_code_runs_a_command_and_writes_a_file(scripted: Server, project: Path) -> None:
    written = project / "copy.txt"
    bash = ("Bash", {"command": "cat note.txt", "description": "Show the note"})
    result = claude(scripted, project, task(bash))
    assert (result["is_error"], result["num_turns"]) == (False, 2)
    assert result["result"] == f"1 thoughts later it says: {SECRET}"
    assert result["usage"]["cache_read_input_tokens"] > 10_000  # the second turn begins as the first
    assert result["usage"]["cache_creation_input_tokens"] > 10_000
    write = ("Write", {"file_path": str(written), "content": SECRET.upper()})
    result = claude(scripted, project, task(bash, write))
    assert (result["is_error"], result["num_turns"]) == (False, 3)
    assert written.read_text() == SECRET.upper()


def test_claude_code_loads_a_tool_that_it_has_deferred(scripted: Server, project: Path) -> None:
    calls = [("ToolSearch", {"query": "select:CronList"}), ("CronList", {})]
    result = claude(scripted, project, task(*calls))
    assert (result["is_error"], result["num_turns"]) == (False, 3), result
    assert "No scheduled jobs" in result["result"]


def test_codex_runs_a_command(scripted: Server, project: Path) -> None:
    assert SECRET in codex(scripted, project, task(("exec_command", {"cmd": "cat note.txt"})))
    text = task(("exec_command", {"cmd": "cp note.txt copy.txt"}), ("exec_command", {"cmd": "ls"}))
    answer = codex(scripted, project, text, "-s", "workspace-write")
    assert "2 thoughts later" in answer
    assert "copy.txt" in answer
    assert (project / "copy.txt").read_text() == f"{SECRET}\n"


def test_codex_without_a_sandbox_needs_its_search_of_the_web_switched_off(scripted: Server, project: Path) -> None:
    text, unbound = task(("exec_command", {"cmd": "cat note.txt"})), ("-s", "danger-full-access")
    with pytest.raises(AssertionError, match="external_web_access"):
        codex(scripted, project, text, *unbound)
    assert SECRET in codex(scripted, project, text, *unbound, "-c", 'web_search="disabled"')


def test_codex_calls_a_tool_of_a_namespace(scripted: Server, project: Path) -> None:
    text = task(("multi_agent_v1__close_agent", {"target": "nobody"}))
    assert "invalid agent id nobody" in codex(scripted, project, text)
