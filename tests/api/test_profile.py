"""Traces over HTTP: of a real server with the fake engine, and of the default model on two emulated cores."""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from neuronserve.cli import main
from tests.api.serving import PATIENCE_S, ROOT, Server, environment, read_until, run_command, running_server
from tests.engine.trace.trace_file import DEVICE, HOST, PART, PARTS, TraceFile

BODY = {"prompt": "Hello", "max_tokens": 8, "ignore_eos": True, "temperature": 0}


def complete(url: str) -> str:
    answer = httpx.post(f"{url}/v1/completions", json=BODY, timeout=60)
    assert answer.status_code == 200
    return str(answer.json()["choices"][0]["text"])


def test_start_and_stop_with_requests_in_between(checkpoint: Path, tmp_path: Path) -> None:
    traces = tmp_path / "new" / "traces"
    with running_server(checkpoint, "--trace-dir", str(traces)) as server:
        url = server.url
        refused = httpx.post(f"{url}/stop_profile")
        assert (refused.status_code, refused.json()["error"]["message"]) == (409, "No trace is being recorded.")
        assert httpx.post(f"{url}/start_profile").json() == {"recording": True}
        refused = httpx.post(f"{url}/start_profile")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "profile_error")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(complete, [url] * 4))) == 1
        (answer,) = httpx.post(f"{url}/stop_profile").json()["traces"]
        complete(url)  # serves on
    assert list(traces.iterdir()) == [Path(answer["file"])]
    trace = TraceFile(Path(answer["file"]))
    assert (answer["events"], answer["truncated"]) == (len(trace.events), False)
    assert len(trace.requests) == 4
    assert len([name for name in trace.named(HOST, 0) if name.startswith("step ")]) == answer["steps"] >= 8


@pytest.mark.slow
def test_a_trace_that_is_under_way_at_shutdown_is_written(checkpoint: Path, tmp_path: Path) -> None:
    with running_server(checkpoint, "--trace-dir", str(tmp_path)) as server:
        httpx.post(f"{server.url}/start_profile").raise_for_status()
        complete(server.url)
    (file,) = tmp_path.iterdir()
    assert len(TraceFile(file).requests) == 1


@pytest.mark.slow
def test_every_engine_writes_a_trace(checkpoint: Path, tmp_path: Path) -> None:
    with running_server(checkpoint, "--trace-dir", str(tmp_path), "--data-parallel-size", "2") as server:
        httpx.post(f"{server.url}/start_profile").raise_for_status()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(complete, [server.url] * 4))
        traces = httpx.post(f"{server.url}/stop_profile").json()["traces"]
    assert len({trace["file"] for trace in traces}) == 2
    assert sum(len(TraceFile(Path(trace["file"])).requests) for trace in traces) == 4


def test_without_a_directory_there_is_no_tracing(server: Server) -> None:
    answer = httpx.post(f"{server.url}/start_profile")
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "profile_disabled"
    assert "--trace-dir" in answer.json()["error"]["message"]


@pytest.mark.slow
def test_it_takes_the_key_where_there_is_one(checkpoint: Path, tmp_path: Path) -> None:
    with running_server(checkpoint, "--trace-dir", str(tmp_path), "--api-key", "k") as server:
        for path in ("/start_profile", "/stop_profile"):
            assert httpx.post(server.url + path).status_code == 401
        headers = {"Authorization": "Bearer k"}
        assert httpx.post(f"{server.url}/start_profile", headers=headers).status_code == 200


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_refused_at_start(checkpoint: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    ended = run_command("serve", str(checkpoint), "--trace-dir", str(tmp_path))
    assert (ended.returncode, f"--trace-dir: cannot write to {tmp_path}" in ended.stderr) == (2, True)


@pytest.mark.slow
def test_a_directory_that_cannot_be_made_is_refused_at_start(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = run_command("serve", str(checkpoint), "--trace-dir", str(tmp_path / "file" / "traces"))
    assert ended.returncode == 2
    assert "--trace-dir: cannot make" in ended.stderr


@pytest.mark.slow
def test_the_default_model_on_two_cores(tmp_path: Path) -> None:
    """Instructions of every layer on both lanes, and the all-reduces between them."""
    argv = ["serve", "--tensor-parallel-size", "2", "--device", "inf2.48xlarge", "--port", "0"]
    argv += ["--trace-dir", str(tmp_path), "--max-model-len", "128"]
    env = environment(NEURON_RT_VISIBLE_CORES="4-5")
    process = subprocess.Popen([sys.executable, "-m", "neuronserve", *argv], stderr=subprocess.PIPE, cwd=ROOT, env=env)
    try:
        url = read_until(process, rb"ready: (http://\S+)", 300).split("ready: ")[1].split()[0]
        text = complete(url)
        httpx.post(f"{url}/start_profile").raise_for_status()
        assert complete(url) == text  # looking on changes nothing
        (answer,) = httpx.post(f"{url}/stop_profile", timeout=60).json()["traces"]
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
        assert process.stderr is not None
        process.stderr.close()
    trace = TraceFile(Path(answer["file"]))
    assert [trace.lanes[DEVICE, core] for core in (0, 1)] == ["ND 2:NC 0", "ND 2:NC 1"]
    config = json.loads((ROOT / "server/default_model/config.json").read_text())
    names = trace.named(DEVICE, 0, "instruction")
    assert names == trace.named(DEVICE, 1, "instruction")
    assert names.count("layer 0 attention") == answer["steps"] == 8
    reduces = trace.named(DEVICE, 1, "collective")
    assert len(reduces) == answer["steps"] * 2 * config["num_hidden_layers"]  # after o and down of each layer
    assert reduces[-1] == "all-reduce, final norm"
    for step in trace.spans[DEVICE, 0]:
        assert step["dur"] > 0
    graphs = trace.check_part()
    assert [graph["name"] for graph in graphs] == ["prefill 128"] + ["decode 64 x 128"] * 7
    assert [len(trace.spans[PART, lane]) for lane in PARTS] == [8] * len(PARTS)
    assert all(graph["args"]["extrapolated"] for graph in graphs)  # no such small model was measured


@pytest.mark.slow
def test_bench_latency_writes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.json"
    argv = ["bench", "latency", "--input-len", "8", "--output-len", "4", "--num-iters", "1", "--max-model-len", "64"]
    assert main([*argv, "--trace", str(file)]) == 0
    assert "trace of 4 steps" in capsys.readouterr().err
    trace = TraceFile(file)
    assert trace.named(DEVICE, 0, "collective") == []  # one core has nobody to add up with
    assert len(trace.requests) == 1
    assert len(trace.check_part()) == 4
    assert main([*argv, "--trace", str(tmp_path / "no" / "trace.json")]) == 2
    assert "--trace: cannot write" in capsys.readouterr().err
