"""The folder of `plan --emit`: existing files, the chosen row, and runs of the written files."""

from __future__ import annotations

import ast
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from neuronserve import cli
from neuronserve.loadtests import cli as loadtests_cli
from neuronserve.loadtests.local_server import running
from neuronserve.planner.emit.folder import README, Emission, emit
from neuronserve.planner.emit.targets import rendered
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.report import PlanReport
from neuronserve.planner.plan.search import plan
from neuronserve.server.errors import SettingsError
from tests.planner.emit_cases import CASES, PLANS

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_MODEL = ROOT / "server" / "default_model"


@pytest.fixture(scope="module")
def report() -> PlanReport:
    return plan(PLANS["8b, default stacks"])


def test_the_folder_is_written_again_over_itself_but_over_nothing_else(report: PlanReport, tmp_path: Path) -> None:
    emission = Emission(tmp_path / "deep" / "out")
    paths = emit(report, emission)
    assert {path.name for path in paths} == {path.name for path in emission.directory.iterdir()}
    assert os.access(emission.directory / "neuronserve.sh", os.X_OK)
    assert emit(report, emission) == paths
    (emission.directory / "check.toml").write_text("mine")
    (emission.directory / README).unlink()
    with pytest.raises(SettingsError, match=r"check\.toml is there with other contents"):
        emit(report, emission)
    assert not (emission.directory / README).exists(), "nothing is written when something is refused"
    assert (emission.directory / "check.toml").read_text() == "mine"


def test_another_row_is_chosen_by_its_number(report: PlanReport, tmp_path: Path) -> None:
    emit(report, Emission(tmp_path / "first", 1))
    emit(report, Emission(tmp_path / "third", 3))
    first, third = ((tmp_path / name / README).read_text() for name in ("first", "third"))
    assert first != third
    emit(report, Emission(tmp_path / "best"))
    assert (tmp_path / "best" / README).read_text() == first


def test_rows_that_cannot_be_deployed_are_refused(report: PlanReport, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"emit_row is 9999: the tables have \d+ rows"):
        emit(report, Emission(tmp_path, 9999))
    hopeless = plan(PlanOptions("llama-8b", tpot_s=1e-5, devices=("inf2.48xlarge",)))
    with pytest.raises(SettingsError, match="no configuration holds the limits; emit_row 1"):
        emit(hopeless, Emission(tmp_path))
    emit(hopeless, Emission(tmp_path / "row", 1))
    assert "**The limits are not held**" in (tmp_path / "row" / README).read_text()
    staged = plan(PlanOptions("llama-8b", devices=("inf2.48xlarge",), pipeline_parallel_sizes=(2,)))
    with pytest.raises(SettingsError, match="2 pipeline stages"):
        emit(staged, Emission(tmp_path / "staged"))
    with pytest.raises(SettingsError, match="cannot write"):
        emit(report, Emission(Path("/proc/nowhere")))


@pytest.mark.parametrize("words", ["--emit-row 2", "--emit x --emit-row 0"])
def test_wrong_flags_are_refused_by_name(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "llama-8b", *words.split()]) == 2
    assert "emit-row" in capsys.readouterr().err.replace("emit_row", "emit-row")


# --- as it runs

FAKE_VLLM = """\
#!{python}
import http.server, os, sys
port = sys.argv[sys.argv.index("--port") + 1]
with open(os.environ["SEEN"] + port, "w") as file:
    file.write(repr((os.getpid(), os.environ.get("NEURON_RT_VISIBLE_CORES"), sys.argv[1:])))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


@pytest.mark.parametrize(("replicas", "cores"), [("3", ["0-7", "8-15", "16-23"]), ("1", [None])])
def test_the_script_starts_a_server_for_each_group_of_cores_and_ends_them(
    tmp_path: Path, replicas: str, cores: list[str | None]
) -> None:
    executable(tmp_path / "bin" / "vllm", FAKE_VLLM.format(python=sys.executable))
    script = executable(tmp_path / "run.sh", rendered(CASES["inf2"]).texts["vllm-nxdi.sh"])
    port = free_port()
    environment = path_first(tmp_path / "bin") | {"SEEN": f"{tmp_path}/seen-", "PORT": str(port), "REPLICAS": replicas}
    process = subprocess.Popen(["bash", str(script)], env=environment, cwd=tmp_path)
    try:
        seen = [wait_for(tmp_path / f"seen-{port + number}") for number in range(len(cores))]
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(30)
    assert code == 143
    assert [visible for _, visible, _ in seen] == cores
    for pid, _, arguments in seen:
        assert has_ended(pid)
        assert arguments[:2] == ["serve", "meta-llama/Meta-Llama-3-8B"]
        config = json.loads(arguments[arguments.index("--additional-config") + 1])
        assert config["override_neuron_config"]["context_encoding_buckets"] == [512, 1024]


@pytest.mark.slow
def test_a_planned_default_model_is_served_and_checked_by_what_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kernel_cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: `plan --emit`, the command of the folder, and the load test of the folder against it."""
    monkeypatch.setenv("NEURONSERVE_KERNEL_CACHE_DIR", kernel_cache)
    out = tmp_path / "out"
    words = f"plan {DEFAULT_MODEL} --device inf2.xlarge --input-len 100 --output-len 20 --request-rate 4 --tpot-ms 100"
    assert cli.main([*words.split(), "--emit", str(out)]) == 0
    told = capsys.readouterr().out
    assert f"written: {out / README}" in told
    executable(tmp_path / "bin" / "neuronserve", f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m neuronserve "$@"\n')
    command = ["env", f"PATH={path_first(tmp_path / 'bin')['PATH']}", str(out / "neuronserve.sh"), "--port", "0"]
    with running(command) as url:
        check = f"--scenario {out}/check.toml --base-url {url} --num-prompts 12 --num-warmups 1 --max-lag-ms 1e9"
        assert loadtests_cli.main([*check.split(), "--disable-progress", "--json", str(tmp_path / "r.json")]) == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert (result["completed"], result["total_output_tokens"]) == (12, 12 * 20)
    record = result["benchmark_record"]
    assert float(record["planned_mean_tpot_ms"]) > 0
    assert record["instance"] == "inf2.xlarge"
    assert result["cost_per_million_output_tokens_usd"] > 0


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def path_first(directory: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def has_ended(pid: int) -> bool:
    """Return whether the process ends within a minute."""
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not Path(f"/proc/{pid}").exists()


def wait_for(path: Path) -> Any:
    """Return the facts that the fake server has written."""
    deadline = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    return ast.literal_eval(path.read_text())
