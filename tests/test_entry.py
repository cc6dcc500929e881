"""The command beside an application that has packages of the same names as ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import packages_distributions
from pathlib import Path

import httpx
import pytest

from neuronserve import COMMAND
from tests.api.serving import PATIENCE_S, ROOT, environment, until
from tests.depth import thorough

SCRIPT = """import sys
from neuronserve.__main__ import main
if __name__ == "__main__":
    sys.exit(main())
"""  # what installers write
SHADOWS = ("server", "loadtests", "numpy", "fastapi")


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """A directory with packages that only it may import."""
    for name in SHADOWS:
        (tmp_path / "app" / name).mkdir(parents=True)
        (tmp_path / "app" / name / "__init__.py").write_text("raise RuntimeError('this is the application')\n")
    return tmp_path / "app"


@pytest.mark.parametrize("is_script", [False, thorough(True)])
def test_an_applications_packages_do_not_take_the_place_of_ours(
    application: Path, kernel_cache: str, is_script: bool
) -> None:
    """All of it runs: engine, tokenizer and chat template are processes that are started with the same path."""
    script = application / "bin" / "neuronserve"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (application / "in.jsonl").write_text(json.dumps(line) + "\n")
    start = (sys.executable, str(script)) if is_script else COMMAND
    ended = subprocess.run(
        [*start, "run-batch", "-i", "in.jsonl", "-o", "out.jsonl", "--kernel-cache-dir", kernel_cache],
        cwd=application,
        env=environment(PYTHONPATH=f".:{application}:{ROOT}", NUMBA_DISABLE_JIT="1"),  # to debug its own kernels
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads((application / "out.jsonl").read_text())["response"]["status_code"] == 200


def every_name() -> set[str]:
    """Names of all modules of the standard library, and of all that is installed."""
    installed = {name for name in packages_distributions() if name.isidentifier()}
    return (set(sys.stdlib_module_names) | installed) - {"__main__", "antigravity", "this"}


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A working directory whose modules have every name, and write it into a file when they are executed."""
    folder = tmp_path / "trap"
    folder.mkdir()
    for name in every_name():
        line = f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r} + '\\n')\n"
        (folder / f"{name}.py").write_text(line)
    return folder


def executed(trap: Path) -> list[str]:
    file = trap.with_name("executed")
    return file.read_text().split() if file.exists() else []


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    """The command as installers write it, without `-P`."""
    file = tmp_path / "bin" / "neuronserve"
    file.parent.mkdir()
    file.write_text(SCRIPT)
    return [sys.executable, str(file)]


@pytest.mark.parametrize("options", [(), thorough(("--replicas", "2", "--data-dir", "../data"))])
def test_a_server_executes_nothing_of_its_working_directory(
    trap: Path, script: list[str], kernel_cache: str, options: tuple[str, ...]
) -> None:
    """Engine, templates, grammars, the planner, compile helpers and replicas are processes of their own."""
    command = [*script, "serve", "--port", "0", "--kernel-cache-dir", kernel_cache, *options]
    environ = {**os.environ, "NEURONSERVE_LOG_LEVEL": "warning"}
    environ.pop("PYTHONPATH", None)
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}
    ready = trap.with_name("ready.json")
    process = subprocess.Popen([*command, "--ready-file", str(ready)], cwd=trap, env=environ)
    try:
        until(lambda: ready.exists() or process.poll() is not None)
        url = json.loads(ready.read_text())["url"]
        for each in (body, {**body, "response_format": schema}):
            answer = httpx.post(f"{url}/v1/chat/completions", json=each, timeout=PATIENCE_S)
            assert answer.status_code == 200, answer.text
        if not options:
            assert httpx.get(f"{url}/console/choices", timeout=PATIENCE_S).status_code == 200
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
    assert executed(trap) == []


@pytest.mark.parametrize(
    "command",
    [
        "--version",
        "doctor",
        "models",
        "compile -o ../compiled",
        thorough("plan llama-3.1-8b --device inf2.24xlarge"),
        thorough("bench latency --num-iters 1"),
        thorough("completion bash"),
        thorough("ls"),
    ],
)
def test_no_command_executes_anything_of_its_working_directory(
    trap: Path, script: list[str], command: str, kernel_cache: str
) -> None:
    environ = {**os.environ, "NEURONSERVE_KERNEL_CACHE_DIR": kernel_cache}
    environ.pop("PYTHONPATH", None)
    ended = subprocess.run(
        [*script, *command.split()],
        cwd=trap,
        env=environ,
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
        check=False,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    assert executed(trap) == []


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("ls --url http://127.0.0.1:1", "no server answers at"),
        ("serve", "the working directory has been removed"),
    ],
)
def test_a_working_directory_that_is_gone_is_needed_by_those_alone_that_start_processes(
    tmp_path: Path, command: str, says: str
) -> None:
    (tmp_path / "gone").mkdir()
    ended = subprocess.run(
        ["sh", "-c", f'rmdir ../gone; exec "$@" {command}', "sh", *COMMAND],
        cwd=tmp_path / "gone",
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (says in ended.stderr, "Traceback" in ended.stderr) == (True, False), ended.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_nobody_reads_is_no_error(unbuffered: str) -> None:
    read, write = os.pipe()
    os.close(read)
    argv, env = [*COMMAND, "completion", "bash"], environment(PYTHONUNBUFFERED=unbuffered)
    ran = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, env=env, check=False)
    os.close(write)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize("delay_s", [0.5, 1.5, thorough(1.0), thorough(2.0), thorough(3.0)])
def test_an_interrupt_during_a_start_ends_it_without_a_traceback(
    script: list[str], tmp_path: Path, kernel_cache: str, delay_s: float
) -> None:
    """The terminal sends it to the server and to all its children."""
    process = subprocess.Popen(
        [*script, "serve", "--port", "0", "--kernel-cache-dir", kernel_cache],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(delay_s)  # whatever it does by then
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (0, 130, -signal.SIGINT), said
    if "neuronserve" in said:  # else it was Python itself that started
        assert "Traceback" not in said
