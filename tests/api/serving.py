"""A real server process with a fake model: the loader (it must be importable by the engine's process) and its files."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from neuronserve.cli.several_models import rows_of
from neuronserve.server.config import CacheConfig, EngineConfig, SchedulerConfig
from neuronserve.server.cost.pricer import StepPricer
from neuronserve.server.device.buckets import CompiledShapes, powers_of_two
from neuronserve.server.device.instances import INSTANCES
from neuronserve.server.engine.fake_runner import FakeRunner
from neuronserve.server.engine.loop import Pending, Runner
from neuronserve.server.errors import StartError
from neuronserve.server.host.memory import GIB
from neuronserve.server.link.handle import EngineEnd
from neuronserve.server.link.messages import CoreMemory, EngineFacts, EngineInfo, WeightsIdentity
from neuronserve.server.placement.shared_cores import Account
from neuronserve.server.types import StepPlan
from tests.api.echo import EchoRunner
from tests.api.speech import SpeechRunner
from tests.cost.pricing import small_pricer

ROOT = Path(__file__).resolve().parents[2]
LOG_BYTES = 2**20  # that a server may write while no test reads it: a full pipe would hold it up
PATIENCE_S = 120  # with what a busy machine does at last; no test is about time
MAX_MODEL_LEN = 512
NUM_SPECIAL = 4
VOCAB_SIZE = 256 + NUM_SPECIAL
INSTANCE_NAMES = {part.name for part in INSTANCES}
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if messages[0].content == 'refuse me' %}{{ raise_exception('no thanks') }}{% endif %}"
    "{% if messages[0].content == 'loop' %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
    "{% endfor %}{% endif %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def write_checkpoint(directory: Path) -> Path:
    """A checkpoint without weights: byte-level tokenizer (one id a byte), chat template, generation defaults."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|start|>", "<|end|>", "<|eos|>", "<|pad|>"])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    files = {
        "config.json": {"vocab_size": VOCAB_SIZE, "eos_token_id": 258},
        "tokenizer_config.json": {"eos_token": "<|eos|>", "chat_template": TEMPLATE},
        "generation_config.json": {"eos_token_id": [258, 257]},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    return directory


class SlowRunner:
    """A runner that takes `step_s` seconds a step, so that a test can act in the middle of a request."""

    def __init__(self, runner: Runner, step_s: float) -> None:
        self._runner = runner
        self._step_s = step_s

    def submit(self, plan: StepPlan) -> Pending:
        time.sleep(self._step_s)
        return self._runner.submit(plan)


class HeldRunner:
    """A runner that stops after a few steps as long as a file is there: a test can act in the middle of a request."""

    def __init__(self, runner: Runner, file: Path) -> None:
        self._runner, self._file = runner, file
        self._num_free = 3  # steps: the first tokens come

    def submit(self, plan: StepPlan) -> Pending:
        self._num_free -= 1
        while self._num_free < 0 and self._file.exists():
            time.sleep(0.005)
        return self._runner.submit(plan)


class PoisonedRunner:
    """A slow runner whose process gets a signal when it computes a sequence with a certain token in its prompt."""

    def __init__(self, runner: Runner, token_id: int, number: int) -> None:
        self._runner, self._token_id, self._number = runner, token_id, number

    def submit(self, plan: StepPlan) -> Pending:
        if any(self._token_id in seq.history[: seq.num_prompt_tokens] for seq in plan.seqs):
            os.kill(os.getpid(), self._number)
        return self._runner.submit(plan)


@dataclass(frozen=True)
class FakeEngine:
    runner: Runner
    cache: CacheConfig
    scheduler: SchedulerConfig
    info: EngineInfo
    pricer: StepPricer
    grammars: None = None  # the fake model follows none
    adapters: None = None
    pooling: None = None  # it encodes nothing
    encodings: None = None  # no request waits for an encoder
    copy_block: Callable[[int, int], None] | None = None
    blocks: FakeRunner | None = None
    give_back: None = None  # it has no memory
    states: None = None


def load_fake(config: EngineConfig, report: Callable[[str], None]) -> FakeEngine:
    """The loader of the tests. `device` asks for more: `fail`, `crash`, `hang`, `echo`, `slow:SECONDS`, `hold:FILE`,
    `poison:TOKEN:SIGNAL` or `parts`, which begins sequences inside of cached blocks."""
    report("loading the fake model")
    if config.device == "fail":
        raise StartError("the model does not fit: it needs 99 GiB, the core has 16 GiB")
    if config.device == "crash":
        os._exit(7)
    if config.device == "hang":
        time.sleep(3600)
    cache = CacheConfig(config.num_blocks_override or 256, config.block_size, config.enable_prefix_caching)
    max_model_len = config.max_model_len or MAX_MODEL_LEN
    scheduler = SchedulerConfig.of(config, max_model_len, None)
    file = Path(config.model_path) / "config.json"  # tests of the engine alone have no files
    model: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"vocab_size": VOCAB_SIZE}
    info = EngineInfo(
        max_model_len=max_model_len,
        cache=cache,
        max_num_queued_reqs=config.max_num_queued_reqs,
        device=config.device if config.device in INSTANCE_NAMES else "inf2.xlarge",
        tensor_parallel_size=config.tensor_parallel_size,
        dtype=config.dtype,
        vocab_size=model["vocab_size"],
        facts=fake_facts(config, max_model_len),
        memory=(CoreMemory({"weights": 700, "kv": 200}, 950, 1000), CoreMemory({"weights": 600, "kv": 200}, 950, 1000)),
        host_memory={"weights": 1400, "partial_sums": 64},
        kernels={"compiled_for": "avx2", "matmul": "avx2"},
        reads_pictures=model.get("model_type") == "qwen3_vl",
    )
    fake, pricer = FakeRunner(cache, VOCAB_SIZE), small_pricer(config.max_num_seqs, max_model_len)
    copy_block = fake.copy if config.device == "parts" else None
    runner = paced_runner(model.get("pace", config.device), fake)
    return FakeEngine(runner, cache, scheduler, info, pricer, copy_block=copy_block, blocks=fake)


def paced_runner(device: str, runner: Runner) -> Runner:
    """The fake model, at the pace that `device` asks for."""
    kind, _, value = device.partition(":")
    if kind == "echo":
        return EchoRunner()
    if kind == "speech":
        return SpeechRunner(json.loads(value))
    if kind == "hold":
        return HeldRunner(runner, Path(value))
    if kind == "poison":
        token_id, _, number = value.partition(":")
        return PoisonedRunner(SlowRunner(runner, 0.002), int(token_id), int(number))
    return SlowRunner(runner, float(value)) if kind == "slow" else runner


def run_fake(config: EngineConfig, end: EngineEnd) -> int:
    """Main function of the tests' engine process; the API's process needs no compiler for it."""
    from neuronserve.server.engine.process import run_engine

    return run_engine(load_fake, config, end)


def fake_account(config: EngineConfig) -> Account:
    """The memory of a fake model: `gib` of its config.json on each core, and a fifth of it on the host."""
    model = json.loads((Path(config.model_path) / "config.json").read_text())
    num_bytes = int(model.get("gib", 1) * GIB)
    if model.get("gib") == 0:
        raise StartError("config.json: gib is 0")
    cores = (num_bytes,) * config.tensor_parallel_size
    rows = rows_of(config.max_model_len or MAX_MODEL_LEN, "generate", num_bytes // 2)
    return Account(cores, num_bytes // 5, 256, rows)


def fake_facts(config: EngineConfig, max_model_len: int) -> EngineFacts:
    pricer = small_pricer(config.max_num_seqs, max_model_len)
    quantization = None if config.quantization == "none" else config.quantization
    compiled = CompiledShapes(config.batching, config.max_num_seqs, powers_of_two(max_model_len), (max_model_len,))
    return EngineFacts(
        "Fake",
        5_000_000 if config.most_kept_bytes else 7,  # copies of a model with few are not worth loading
        quantization,
        config.groups,
        (),
        WeightsIdentity("00", "manifest"),
        "11",
        compiled,
        pricer.calibration,
        (),
        config.pace,
    )


@dataclass
class Server:
    """A running `neuronserve serve`: its process, its address, and its output so far."""

    process: subprocess.Popen[bytes]
    url: str
    log: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def engine_pids(self) -> list[int]:
        """Pids of the engines: children that have a heartbeat, at first in the order of their ranks."""
        return [pid for pid in children(self.process.pid) if is_engine(pid)]

    @property
    def engine_pid(self) -> int:
        """Pid of the first engine's process."""
        return self.engine_pids[0]

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        return self.process.wait(timeout_s)

    def last_words(self) -> str:
        """Log lines after the server's start, once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()


def command(*args: str, program: str = "tests.api.serve_fake") -> list[str]:
    return [sys.executable, "-m", program, *args]


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **extra}


@contextlib.contextmanager
def running_server(
    model: Path,
    *args: str,
    env: dict[str, str] | None = None,
    program: str = "tests.api.serve_fake",
    under: Sequence[str] = (),
) -> Iterator[Server]:
    """Start a server on a free port, wait until it is ready, and end it by its pid afterwards.

    `under` is a command that runs the rest of its arguments, such as prlimit.

    The program `neuronserve` has the real engine, which may have to compile its kernels first.
    """
    argv = command("serve", str(model), "--port", "0", "--served-model-name", "fake", *args, program=program)
    # Most tests ask for more tokens than they need; what the default does with that is in `test_parameters.py`.
    env = {"NEURONSERVE_CONTEXT_OVERFLOW": "clip", **(env or environment())}
    with running([*under, *argv], env, PATIENCE_S if program == "tests.api.serve_fake" else 600) as server:
        yield server


@contextlib.contextmanager
def running(argv: Sequence[str], env: dict[str, str], patience_s: float = PATIENCE_S) -> Iterator[Server]:
    """Start a command that serves, wait until it is ready, and end it by its pid afterwards."""
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, cwd=ROOT, env=env)
    assert process.stderr is not None
    fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, LOG_BYTES)
    try:
        log = read_until(process, rb"ready: (https?://[^\s\"]+)", patience_s)
        found = re.search(r"ready: (https?://[^\s\"]+)", log)
        assert found is not None, log
        yield Server(process, found[1], log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
        if process.poll() is None:
            process.kill()
        process.wait(10)
        assert process.stderr is not None
        process.stderr.close()


def read_until(process: subprocess.Popen[bytes], pattern: bytes, timeout_s: float = PATIENCE_S) -> str:
    """Return the process's output, up to the line with `pattern`, its end, or the timeout."""
    assert process.stderr is not None
    data = b""
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(process.stderr, selectors.EVENT_READ)
        while not re.search(pattern + rb"[\s\"]", data) and time.monotonic() < deadline:
            if selector.select(timeout=1):
                chunk = os.read(process.stderr.fileno(), 65536)
                if not chunk:
                    break
                data += chunk
    return data.decode()


def run_command(
    *args: str, env: dict[str, str] | None = None, program: str = "tests.api.serve_fake"
) -> subprocess.CompletedProcess[str]:
    """Run a command that is expected to end by itself."""
    return subprocess.run(
        command(*args, program=program),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
        env=env or environment(),
        check=False,
    )


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that a server does by itself; how long it takes is the machine's business."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {PATIENCE_S} s"
        time.sleep(0.02)


def children(pid: int) -> Sequence[int]:
    """Pids of the processes that `pid` and its children have started, whichever of their threads, the oldest first."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    direct = [int(part) for file in files for part in file.read_text().split()]
    return sorted(pid for child in direct for pid in (child, *children(child)))


def command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def is_engine(pid: int) -> bool:
    """Whether a process has an engine's heartbeat in its memory."""
    with contextlib.suppress(OSError):
        return any("neuronserve-heartbeat" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    return False


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False
