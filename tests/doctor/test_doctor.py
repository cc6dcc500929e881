"""`neuronserve doctor`: on this host from the outside, and what follows from the facts of others."""

from __future__ import annotations

import json
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neuronserve import COMMAND
from neuronserve.server.doctor.findings import Finding, Host, KernelCache, findings, require_healthy
from neuronserve.server.errors import StartError
from neuronserve.server.host.cpu_quota import cpu_quota, host_threads
from neuronserve.server.host.memory import GIB, limit_bytes
from tests.api.serving import PATIENCE_S, environment

GOOD = Host(
    machine="x86_64",
    cpu="A CPU",
    isa="amx",
    better={},
    paths={"bfloat16": "amx", "int4": "avx512-vnni"},
    num_cpus=8,
    cpu_quota=None,
    threads=8,
    load=0.5,
    available_bytes=32 * GIB,
    memory_limit=None,
    huge_pages="madvise",
    max_files=1 << 20,
    connections=1 << 19,
    address="127.0.0.1:8000",
    port_problem=None,
    versions={"python": "3.11", "numpy": "2.4"},
    cache=KernelCache("/cache", 50, is_writable=True),
)


def run(*flags: str, under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*under, *COMMAND, "doctor", *flags],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(),
        check=False,
    )


def of(host: Host) -> dict[str, Finding]:
    return {each.subject: each for each in findings(host)}


def test_a_server_would_start_on_this_host(tmp_path: Path) -> None:
    ended = run("--json", "--port", "0", "--kernel-cache-dir", str(tmp_path))
    assert (ended.returncode, ended.stderr) == (0, "")
    report = json.loads(ended.stdout)
    assert {each["subject"] for each in report["findings"]} > {"CPU", "threads", "memory", "port", "kernel cache"}
    assert all(bool(each["advice"]) == (each["level"] != "ok") for each in report["findings"])
    assert report["host"]["paths"].keys() >= {"bfloat16", "int8", "mxfp4"}
    assert report["host"]["cache"]["is_writable"]
    assert not list(tmp_path.iterdir())  # it looks, and changes nothing


def test_what_keeps_a_server_from_starting_is_the_exit_code() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run("--port", port, under=("prlimit", "--nofile=80:80"))
    assert ended.returncode == 1
    assert ended.stderr == "neuronserve: error: a server would not start here: open files, port\n"
    assert f"127.0.0.1:{port}: Address already in use" in " ".join(ended.stdout.split())
    assert "ulimit" in ended.stdout


def test_nothing_is_advised_where_all_is_well() -> None:
    assert {(each.level, each.advice) for each in findings(GOOD)} == {("ok", "")}


@pytest.mark.parametrize(
    ("change", "subject", "level", "words"),
    [
        ({"isa": "avx2", "better": {"avx2-vnni": ("avxvnni",)}}, "CPU", "slow", "avx2-vnni needs avxvnni"),
        ({"isa": "avx512", "better": {"avx512-vnni": ("avx512vnni",)}}, "CPU", "slow", "avx512-vnni needs avx512vnni"),
        ({"machine": "ppc64le", "isa": "portable"}, "CPU", "slow", "no explicit vectors for ppc64le"),
        (
            {"machine": "aarch64", "isa": "portable", "better": {"neon-dot": ("lse", "dotprod")}},
            "CPU",
            "slow",
            "neon-dot needs lse, dotprod",
        ),
        ({"paths": {"int8": "avx2", "mxfp8": "portable"}}, "formats", "slow", "plain loops for mxfp8; avx2 for"),
        ({"cpu_quota": 1.5, "threads": 2}, "threads", "slow", "quota of 1.5: they stand still"),
        ({"cpu_quota": 2.0, "threads": 2}, "threads", "ok", "by a quota of 2"),
        ({"load": 20.0}, "load", "slow", "20.0 processes"),
        ({"available_bytes": GIB, "memory_limit": 2 * GIB}, "memory", "fail", "1.0 GiB available, of a limit of 2.0"),
        ({"huge_pages": "never"}, "huge pages", "slow", "4 KiB"),
        ({"connections": 100}, "open files", "slow", "100 connections"),
        ({"versions": {"python": "3.11", "numba": None}}, "packages", "fail", "numba"),
        ({"cache": KernelCache("/c", 0, is_writable=True)}, "kernel cache", "slow", "compiles for a minute"),
        ({"cache": KernelCache("/c", 0, is_writable=False)}, "kernel cache", "fail", "--kernel-cache-dir"),
        ({"cache": KernelCache("/c", 9, is_writable=False)}, "kernel cache", "ok", "read-only"),
    ],
)
def test_what_is_slow_or_fails_and_what_to_do(change: dict[str, Any], subject: str, level: str, words: str) -> None:
    found = of(replace(GOOD, **change))[subject]
    assert found.level == level
    assert words in f"{found.fact} {found.advice}"
    assert bool(found.advice) == (level != "ok")


def test_the_limits_of_the_control_group_are_those_of_a_server(tmp_path: Path) -> None:

    group = tmp_path / "sys/fs/cgroup/pod"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod\n")
    assert (cpu_quota(tmp_path), limit_bytes(tmp_path)) == (None, None)
    (group / "cpu.max").write_text("50000 100000\n")
    (group / "memory.max").write_text(f"{GIB // 2}\n")
    assert (cpu_quota(tmp_path), host_threads(tmp_path), limit_bytes(tmp_path)) == (0.5, 1, GIB // 2)
    (group / "memory.max").write_text("max\n")
    assert limit_bytes(tmp_path) is None


def test_failures_have_their_own_exit_code() -> None:

    require_healthy(findings(GOOD))
    with pytest.raises(StartError, match="memory") as caught:
        require_healthy(findings(replace(GOOD, available_bytes=1)))
    assert caught.value.exit_code == 1
