"""Programs that are started: what they print is read, and only they are paused and ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import servers
from benchmarks.contention import Contended, busy_cpus
from benchmarks.engine_worker import figures
from benchmarks.llama_cpp import LlamaBench, LlamaContext, parse, parse_context
from benchmarks.process import Process, wait_for_url
from benchmarks.records import BenchmarkError, Case
from benchmarks.worker import WorkerContender
from neuronserve.server.bench.drive import StepTime
from neuronserve.server.settings.model import DEFAULT_MODEL

GOLDEN = Path(__file__).parent / "golden"

CHILD = """
    import json, sys
    print("loading weights")
    print("RESULT " + json.dumps({"version": "7"}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["kind"] == "offline":
            print("RESULT " + json.dumps({"error": "out of cache"}), flush=True)
        elif asked["kind"] == "http":
            sys.exit("gone for good")
        else:
            print("noise\\nRESULT " + json.dumps({"decode_tokens_per_s": asked["seed"]}), flush=True)
"""


def child(text: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(text)]


COUNTING = """
    import os, sys, psutil
    print('RESULT {}', flush=True)
    for line in sys.stdin:
        beside = len(psutil.Process(os.getppid()).children(recursive=True)) - 1
        print('RESULT {"decode_tokens_per_s": %d}' % (100 // (1 + beside)), flush=True)
"""


def test_contention_is_decode_with_and_without_a_busy_process_on_each_cpu() -> None:
    before = len(psutil.Process().children(recursive=True))
    contender = Contended(WorkerContender("counting", child(COUNTING)))
    contender.start()
    try:
        found = contender.measure(Case("contention"), 0)
    finally:
        contender.stop()
    quiet, contended = (100 // (1 + before + beside) for beside in (0, len(os.sched_getaffinity(0))))
    assert found == {"contended_tokens_per_s": contended, "kept_percent": 100 * contended / quiet}
    assert len(psutil.Process().children(recursive=True)) == before


def test_busy_processes_are_of_one_session_and_end_with_their_leader() -> None:
    with busy_cpus():
        (leader,) = [p for p in psutil.Process().children() if os.getsid(p.pid) == p.pid]
        busy = [leader, *leader.children()]
        assert {os.getsid(process.pid) for process in busy} == {leader.pid}
        assert sorted(cpu for p in busy for cpu in p.cpu_affinity()) == sorted(os.sched_getaffinity(0))
        leader.kill()
        psutil.wait_procs(busy, timeout=30)
        assert not any(process.is_running() for process in busy[1:])


def test_llama_bench_output_is_read() -> None:
    text = (GOLDEN / "llama-bench.json").read_text()
    assert parse(text, 512, 0).avg_ts == pytest.approx(json.loads(text)[0]["avg_ts"])
    assert parse(text, 0, 128).n_gen == 128


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("error: failed to load model", "is not JSON"),
        ("[]", "nothing for 512 prompt and 0"),
        ('[{"n_prompt": 512, "n_gen": 0}]', "avg_ts is missing"),
    ],
)
def test_llama_bench_output_that_is_none_is_refused(output: str, words: str) -> None:
    with pytest.raises(BenchmarkError, match=words):
        parse(output, 512, 0)


def test_llama_bench_is_called_for_one_phase(tmp_path: Path) -> None:
    program, model = tmp_path / "llama-bench", tmp_path / "m.gguf"
    model.touch()
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\na = sys.argv\n"
        "e = {'n_prompt': int(a[a.index('-p') + 1]), 'n_gen': int(a[a.index('-n') + 1]), 'avg_ts': 12.5}\n"
        "print(json.dumps([e | {'build_number': 9, 'build_commit': 'abc', 'model_type': 'x Q8_0'}]))\n"
    )
    program.chmod(0o755)
    bench = LlamaBench(program, model, threads=2)
    bench.start()
    assert bench.measure(Case("prefill"), 0) == {"prefill_tokens_per_s": 12.5}
    assert bench.measure(Case("decode"), 0) == {"decode_tokens_per_s": 12.5}
    assert bench.about()["version"] == "9 (abc)"


def test_llama_cpp_has_a_long_prompt_and_what_follows_in_one_call(tmp_path: Path) -> None:
    program, model = tmp_path / "llama-batched-bench", tmp_path / "m.gguf"
    model.touch()
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\na = sys.argv\nof = lambda flag: int(a[a.index(flag) + 1])\n"
        "assert of('-c') == of('-npp') + of('-ntg') and a[a.index('-ctv') + 1] == 'q8_0'\n"
        "print('noise')\n"
        "print(json.dumps({'pp': of('-npp'), 'tg': of('-ntg'), 'speed_pp': 9.5, 'speed_tg': 2.5, 'pl': 1}))\n"
    )
    program.chmod(0o755)
    bench = LlamaContext(program, model, 2, "q8_0")
    assert bench.measure(Case("context", 8192), 0) == {"prefill_tokens_per_s": 9.5, "decode_tokens_per_s": 2.5}
    with pytest.raises(BenchmarkError, match="nothing for 512 prompt tokens"):
        parse_context('{"pp": 8, "tg": 1, "speed_pp": 1, "speed_tg": 1}', 512)
    with pytest.raises(BenchmarkError, match="speed_pp is missing"):
        parse_context('{"pp": 512, "tg": 1}', 512)


def test_a_gguf_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"none\.gguf"):
        LlamaBench(tmp_path / "llama-bench", tmp_path / "none.gguf", 1).start()


def test_a_worker_answers_between_what_it_prints() -> None:
    worker = WorkerContender("w", child(CHILD))
    worker.start()
    try:
        assert worker.about() == {"version": "7"}
        worker.pause()
        worker.resume()
        assert worker.measure(Case("decode"), 42) == {"decode_tokens_per_s": 42.0}
        with pytest.raises(BenchmarkError, match="out of cache"):
            worker.measure(Case("offline"), 0)
        with pytest.raises(BenchmarkError, match="gone for good"):
            worker.measure(Case("http"), 0)
    finally:
        worker.stop()


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(BenchmarkError, match="/no/such/python"):
        WorkerContender("w", ["/no/such/python"]).start()


def test_a_paused_program_and_its_children_stand_still_and_end() -> None:
    text = """
        import subprocess, sys, time
        grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(grandchild.pid, flush=True)
        time.sleep(600)
    """
    process = Process(child(text), has_pipes=True)
    try:
        grandchild = psutil.Process(int(process.stdout.readline()))
        process.pause()
        assert becomes(grandchild, psutil.STATUS_STOPPED)
        process.resume()
        assert becomes(grandchild, psutil.STATUS_SLEEPING)
        process.pause()
    finally:
        process.stop()
    assert process.has_ended
    assert becomes(grandchild, psutil.STATUS_ZOMBIE)


def test_a_paused_program_ends_with_whoever_started_it() -> None:
    text = f"""
        import os, signal
        from benchmarks.process import Process
        child = Process([{sys.executable!r}, "-c", "import time; time.sleep(600)"], has_pipes=True)
        child.pause()
        print(child._child.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(child(text), capture_output=True, text=True, check=False, timeout=60)
    orphan = int(done.stdout)
    assert not psutil.pid_exists(orphan) or becomes(psutil.Process(orphan), psutil.STATUS_ZOMBIE)


def becomes(process: psutil.Process, status: str) -> bool:
    """Whether the process is found so, or gone, before long: signals are delivered when the host gets to it."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if process.status() == status:
                return True
        except psutil.NoSuchProcess:
            return status == psutil.STATUS_ZOMBIE
        time.sleep(0.01)
    return False


def test_a_server_that_ends_before_it_is_ready_says_why() -> None:
    process = Process(child("import sys; sys.exit('no such model')"))
    with pytest.raises(BenchmarkError, match="no such model"):
        wait_for_url(process, "http://127.0.0.1:9/health", timeout_s=30)
    process.stop()


def test_figures_of_this_engine_are_of_the_steps_they_are_about() -> None:
    steps = [StepTime(1.0, 0.9, 0.0, 1, 0), *[StepTime(0.5, 0.4, 0.0, 0, 1)] * 128]
    assert figures("decode", steps) == {"decode_tokens_per_s": 2.0}
    assert figures("prefill", [StepTime(2.0, 1.9, 0.0, 512, 0)]) == {"prefill_tokens_per_s": 256.0}
    assert figures("offline", steps) == {"output_tokens_per_s": 2048 / 65}
    long = [StepTime(4.0, 3.9, 0.0, 512, 0), StepTime(4.0, 3.9, 0.0, 488, 0), *[StepTime(0.5, 0.4, 0.0, 0, 1)] * 32]
    assert figures("context", long) == {"prefill_tokens_per_s": 125.0, "decode_tokens_per_s": 2.0}
    assert figures("depth", long) == {"prefill_tokens_per_s": 125.0, "decode_tokens_per_s": 2.0}


def result(**changes: Any) -> dict[str, Any]:
    good: dict[str, Any] = {
        "failed": 0,
        "error_examples": {},
        "is_publishable": True,
        "not_publishable_because": None,
        "output_throughput": 100.0,
        "median_ttft_ms": 20.0,
        "median_tpot_ms": 5.0,
    }
    return good | changes


def test_a_load_counts_only_when_every_request_was_answered() -> None:
    names = ("output_throughput", "median_ttft_ms", "median_tpot_ms")
    assert servers.figures("s", result()) == dict(zip(names, (100.0, 20.0, 5.0), strict=True))
    with pytest.raises(BenchmarkError, match="3 requests failed"):
        servers.figures("s", result(failed=3))
    with pytest.raises(BenchmarkError, match="too late"):
        servers.figures("s", result(is_publishable=False, not_publishable_because="too late"))


@pytest.mark.slow
def test_a_server_is_loaded_by_the_projects_generator() -> None:
    """The scripted server stands in for a peer; it serves whatever model it is asked for."""
    arguments = (sys.executable, "-m", "neuronserve.loadtests.mock_server", "--port", "{port}")
    contender = servers.ServerContender("mock", servers.ServerCommand(arguments), DEFAULT_MODEL)
    contender.start()
    try:
        got = contender.measure(Case("http", 3, num_requests=6), seed=1)
        assert got["output_throughput"] > 0
        assert got["median_ttft_ms"] >= 5.0
        assert got["median_tpot_ms"] > 0
    finally:
        contender.stop()
