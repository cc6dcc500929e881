"""`ls`, `top` and `monitor` from the outside, on a real server with the fake engine."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from neuronserve.cli import main
from tests.api.serving import PATIENCE_S, ROOT, Server, environment, run_command, running_server, write_checkpoint


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    with running_server(model, "--device", "inf2.24xlarge") as running:
        yield running


def complete(url: str, max_tokens: int = 16) -> None:
    body = {"prompt": "Hello", "max_tokens": max_tokens, "ignore_eos": True}
    httpx.post(f"{url}/v1/completions", json=body, timeout=60).raise_for_status()


def output(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_a_server_of_this_host_is_asked_past_a_proxy(server: Server) -> None:
    proxies = {name: "http://127.0.0.1:9" for name in ("http_proxy", "HTTP_PROXY", "all_proxy")}
    for name in ("ls", "top", "monitor"):
        flags = ("--once", "--interval", "0.1") if name != "ls" else ()
        ended = run_command(name, "--url", server.url, *flags, env=environment(**proxies, no_proxy=""))
        assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.slow
def test_ls_shows_no_key_of_the_servers_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running_server(write_checkpoint(tmp_path), "--api-key", "s3cret", "--api-key=s3cret2") as server:
        refused = run_command("ls", "--url", server.url)
        assert refused.returncode != 0
        assert "asks for an API key: give --api-key" in refused.stderr
        (device,) = json.loads(output(capsys, "ls", "--url", server.url, "--json", "--api-key", "s3cret"))
        assert device["neuron_processes"][0]["command"].endswith("--served-model-name fake --api-key *** --api-key=***")
        assert "s3cret" not in output(capsys, "ls", "--url", server.url, "--api-key", "s3cret")


def test_ls_has_the_fields_of_neuron_ls(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    devices = json.loads(output(capsys, "ls", "--url", server.url, "--json"))
    assert len(devices) == 6
    (process,) = devices[0].pop("neuron_processes")
    assert devices[0] == {
        "neuron_device": 0,
        "bdf": "",
        "cpu_affinity": "",
        "numa_node": "",
        "connected_to": [5, 1],
        "nc_count": 2,
        "logical_neuroncore_config": 1,
        "memory_size": 32 * 2**30,
        "neuroncore_ids": [0, 1],
    }
    assert process["pid"] == server.process.pid
    assert process["neuroncore_ids"] == [0, 1]
    assert "tests.api.serve_fake serve" in process["command"]
    assert devices[1]["neuron_processes"] == []


def test_ls_prints_a_table(server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    text = output(capsys, "ls", "--url", server.url)
    assert "instance-type: inf2.24xlarge" in text
    assert str(server.process.pid) in text
    assert "10-11" in text


def test_ls_keeps_the_command_whole_on_80_columns(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = output(capsys, "ls", "--url", server.url)
    (device, *_) = json.loads(output(capsys, "ls", "--url", server.url, "--json"))
    assert f"\n{server.process.pid}: {device['neuron_processes'][0]['command']}\n" in text


def test_ls_of_a_part_needs_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    devices = json.loads(output(capsys, "ls", "--device", "trn2.48xlarge", "--json"))
    assert len(devices) == 16
    assert devices[3]["connected_to"] == [15, 2, 7, 0]
    assert devices[3]["logical_neuroncore_config"] == 2
    assert main(["ls", "--device", "inf3.xlarge"]) == 2
    assert "there is no device 'inf3.xlarge'" in capsys.readouterr().err


def test_monitor_writes_the_schema_of_neuron_monitor(server: Server) -> None:
    argv = [sys.executable, "-m", "neuronserve", "monitor", "--url", server.url, "--interval", "1"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment())
    assert process.stdout is not None
    process.stdout.readline()
    complete(server.url)
    report = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    process.stdout.close()
    check_report(report)
    (runtime,) = report["neuron_runtime_data"]
    assert (runtime["pid"], runtime["neuron_runtime_tag"], runtime["error"]) == (server.process.pid, "fake", "")
    stats = runtime["report"]["execution_stats"]
    assert stats["execution_summary"]["completed"] >= 16  # one for each token, the first with the prompt
    latency = list(stats["latency_stats"]["total_latency"].values())
    assert latency == sorted(latency)
    memory = runtime["report"]["memory_used"]["neuron_runtime_used_bytes"]
    assert memory["neuron_device"] == 700 + 600 + 400
    cores = memory["usage_breakdown"]["neuroncore_memory_usage"]
    assert (cores["0"]["constants"], cores["1"]["constants"], cores["0"]["tensors"]) == (700, 600, 200)
    assert runtime["report"]["neuron_runtime_vcpu_usage"]["error"] == ""
    assert report["neuron_hardware_info"] == {
        "neuron_device_type": "inferentia2",
        "neuron_device_version": "",
        "neuroncore_version": "v2",
        "neuron_device_count": 6,
        "neuron_device_memory_size": 32 * 2**30,
        "neuroncore_per_device_count": 2,
        "logical_neuroncore_config": 1,
        "error": "",
    }
    assert report["instance_info"]["instance_type"] == "inf2.24xlarge"
    assert len(report["system_data"]["neuron_hw_counters"]["neuron_devices"]) == 6


def check_report(report: Any) -> None:
    """The keys of SDK neuron-monitor-user-guide.rst."""
    assert set(report) == {"neuron_runtime_data", "system_data", "instance_info", "neuron_hardware_info"}
    (runtime,) = report["neuron_runtime_data"]
    assert set(runtime) == {"pid", "address", "neuron_runtime_tag", "error", "report"}
    groups = runtime["report"] | report["system_data"]
    assert set(runtime["report"]) == {
        "neuroncore_counters",
        "execution_stats",
        "memory_used",
        "neuron_runtime_vcpu_usage",
    }
    assert set(report["system_data"]) == {"neuron_hw_counters", "vcpu_usage", "memory_info"}
    for group in groups.values():
        assert group["period"] > 0
        assert isinstance(group["error"], str)
    for core in groups["neuroncore_counters"]["neuroncores_in_use"].values():
        assert 0 <= core["neuroncore_utilization"] <= 100
    vcpu = groups["vcpu_usage"]
    kinds = {"user", "nice", "system", "idle", "io_wait", "irq", "soft_irq"}
    for usage in (vcpu["average_usage"], *vcpu["usage_data"].values()):
        assert set(usage) == kinds
        assert sum(usage.values()) == pytest.approx(100, abs=1) or sum(usage.values()) == 0
    breakdown = groups["memory_used"]["neuron_runtime_used_bytes"]["usage_breakdown"]
    assert set(breakdown["host"]) == {"application_memory", "constants", "dma_buffers", "tensors"}
    memory = {"constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors"}
    for core in breakdown["neuroncore_memory_usage"].values():
        assert set(core) == memory


@pytest.mark.slow
def test_monitor_reports_a_server_that_has_gone_and_goes_on(tmp_path: Path) -> None:
    with running_server(write_checkpoint(tmp_path)) as server:
        argv = [sys.executable, "-m", "neuronserve", "monitor", "--url", server.url, "--interval", "0.5"]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment())
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["neuron_runtime_data"][0]["error"] == ""
    errors = [json.loads(process.stdout.readline())["neuron_runtime_data"][0]["error"] for _ in range(4)]
    process.stdout.close()  # it ends by itself, in silence, when nobody reads
    assert process.wait(PATIENCE_S) == 0
    assert errors[-1].startswith(f"no server answers at {server.url}: ")


def test_top_prints_one_frame(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    user = threading.Timer(0.3, complete, [server.url, 64])
    user.start()
    text = output(capsys, "top", "--url", server.url, "--once", "--interval", "1.5")
    user.join()
    assert f"inf2.24xlarge (emulated), ready, pid {server.process.pid}" in text
    assert "ND 0:NC 1" in text
    for word in ("weights", "kv", "requests running", "KV cache in use", "mean between tokens"):
        assert word in text
    rate = text.partition("generated tokens/s")[2].split()[0]
    assert float(rate) == pytest.approx(64 / 1.5, rel=0.5)


def test_top_on_a_terminal_ends_with_q(server: Server) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "neuronserve", "top", "--url", server.url, "--interval", "0.2"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environment())
    os.close(theirs)
    shown = b""
    while b"requests running" not in shown:
        shown += os.read(ours, 65536)
    os.write(ours, b"q")
    with contextlib.suppress(OSError):  # as Linux ends a terminal that nobody has open
        while os.read(ours, 65536):
            pass
    os.close(ours)
    assert process.wait(PATIENCE_S) == 0


def test_a_frame_of_a_server_that_still_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Loading(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if self.path == "/health" else 200)
            self.end_headers()
            self.wfile.write(b'{"status": "loading"}' if self.path == "/health" else b"")

        def log_message(self, *_: object) -> None:
            """No lines on stderr."""

    with HTTPServer(("127.0.0.1", 0), Loading) as fake:
        threading.Thread(target=fake.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{fake.server_address[1]}"
        assert "no device yet, loading" in output(capsys, "top", "--url", url, "--once", "--interval", "0.01")
        assert json.loads(output(capsys, "ls", "--url", url, "--json")) == []
        assert "is loading: it has taken no device yet" in output(capsys, "ls", "--url", url)
        report = json.loads(output(capsys, "monitor", "--url", url, "--once", "--interval", "0.01"))
        assert report["neuron_hardware_info"]["error"].startswith("the server is loading")
        fake.shutdown()


@pytest.mark.parametrize("command", ["ls", "top", "monitor"])
@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://127.0.0.1:9", "no server answers at http://127.0.0.1:9: "),
        ("http://no-such-host.invalid", "no server answers at http://no-such-host.invalid: "),
        ("localhost:8000", "--url is 'localhost:8000': it must look like http://HOST:PORT"),
        ("file:///etc/passwd", "it must look like http://HOST:PORT"),
        ("http://127.0.0.1:99999", "it must look like http://HOST:PORT"),
    ],
)
def test_a_server_that_is_not_there_is_one_line(
    command: str, url: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--url", url]) == 2
    shown = capsys.readouterr()
    assert complaint in shown.err
    assert (shown.err.count("\n"), shown.out) == (1, "")


def test_something_else_at_the_address_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: object) -> None:
            """No lines on stderr."""

    with HTTPServer(("127.0.0.1", 0), Other) as fake:
        threading.Thread(target=fake.serve_forever, daemon=True).start()
        assert main(["top", "--url", f"http://127.0.0.1:{fake.server_address[1]}"]) == 2
        assert "but not in neuronserve's form" in capsys.readouterr().err
        fake.shutdown()
