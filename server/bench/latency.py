"""Prefill and decode of one loaded model, in process: the real scheduler, cache and kernels, no HTTP.

Requests are greedy, of random distinct prompts, and all arrive at once. A run's first steps compute prompts; steps in
which every sequence decodes are the decode figures. Bandwidth is probed before and after each run, on the same threads.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from server.bench.bandwidth import BandwidthProbe
from server.bench.options import Workload
from server.clock import MonotonicClock
from server.device.footprint import head_matrix, layer_matrices
from server.device.shard import ShardSpec
from server.engine.load import LoadedEngine
from server.engine.loop import EngineLoop
from server.engine.messages import Add, Command, Tokens
from server.errors import SettingsError
from server.kv_cache.manager import KVCacheManager
from server.scheduler.scheduler import Scheduler
from server.types import Request, SamplingParams


@dataclass(frozen=True, slots=True)
class StepTime:
    """One turn of the engine loop."""

    wall_s: float
    kernel_s: float
    num_prefill_tokens: int
    num_decode_tokens: int


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """Medians over the runs of one workload. Rates are tokens of all sequences together."""

    batch_size: int
    input_len: int
    output_len: int
    runs: int
    prefill_tokens_per_s: float
    prefill_s: float
    decode_tokens_per_s: float
    decode_step_ms: float
    overhead_us: float  # of a decode step: all that is not a kernel
    overhead_fraction: float  # of the decode step's time
    read_bandwidth_gb_s: float  # of the host, beside the runs
    weight_gb_per_step: float  # packed weights read by one decode step
    decode_bandwidth_fraction: float

    def as_json(self) -> dict[str, float]:
        return asdict(self)


class _Queue:
    """Inbox and outbox of a loop that is driven by hand."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.last: Tokens | None = None

    def drain(self, timeout_s: float) -> list[Command]:
        del timeout_s
        commands, self.commands = self.commands, []
        return commands

    def put(self, tokens: Tokens) -> None:
        self.last = tokens


class LatencyBench:
    """Runs workloads on one engine. `on_run` is called after each run, for a progress bar."""

    def __init__(self, engine: LoadedEngine, seed: int = 0, on_run: Callable[[], None] = lambda: None) -> None:
        self._engine, self._on_run = engine, on_run
        self._random = random.Random(seed)
        self._probe = BandwidthProbe(engine.runner.pool)
        self._weight_bytes = weight_bytes_per_step(engine)

    def measure(self, workload: Workload, runs: int) -> LatencyResult:
        """Medians of `runs` runs after one that is not counted. Raises SettingsError when the workload cannot fit."""
        self._require_room(workload)
        self._run(workload)
        self._on_run()
        steps: list[list[StepTime]] = []
        bandwidth = [self._probe.measure()]
        for _ in range(runs):
            steps.append(self._run(workload))
            bandwidth.append(self._probe.measure())
            self._on_run()
        return self._result(workload, steps, statistics.median(bandwidth))

    def _require_room(self, workload: Workload) -> None:
        info, total = self._engine.info, workload.input_len + workload.output_len
        if total > info.max_model_len:
            raise SettingsError(f"input_len + output_len is {total}: max_model_len is {info.max_model_len}")
        if workload.batch_size > self._engine.scheduler.max_num_seqs:
            limit = self._engine.scheduler.max_num_seqs
            raise SettingsError(f"batch_size is {workload.batch_size}: max_num_seqs is {limit}")

    def _run(self, workload: Workload) -> list[StepTime]:
        """One time through the workload, from an empty cache."""
        queue = _Queue()
        scheduler = Scheduler(self._engine.scheduler, KVCacheManager(self._engine.cache))
        loop = EngineLoop(scheduler, self._engine.runner, MonotonicClock(), queue, queue)
        queue.commands = [Add(request) for request in self._requests(workload)]
        return list(self._steps(loop, queue, scheduler))

    def _requests(self, workload: Workload) -> Iterator[Request]:
        sampling = SamplingParams(max_tokens=workload.output_len, temperature=0.0, ignore_eos=True)
        for i in range(workload.batch_size):
            prompt = tuple(self._random.randrange(self._engine.info.vocab_size) for _ in range(workload.input_len))
            yield Request(f"bench-{i}", prompt, sampling, arrival_time=float(i))

    def _steps(self, loop: EngineLoop, queue: _Queue, scheduler: Scheduler) -> Iterator[StepTime]:
        pool = self._engine.runner.pool
        while queue.commands or scheduler.has_work:
            busy, begin = pool.busy_s, time.perf_counter()
            loop.step()
            wall = time.perf_counter() - begin
            assert queue.last is not None
            report = queue.last.report
            yield StepTime(wall, pool.busy_s - busy, report.num_prefill_tokens, report.num_decode_tokens)

    def _result(self, workload: Workload, runs: list[list[StepTime]], bandwidth: float) -> LatencyResult:
        prefill = statistics.median(sum(s.wall_s for s in steps if s.num_prefill_tokens) for steps in runs)
        decode = [s for steps in runs for s in steps if s.num_decode_tokens == workload.batch_size]
        step = statistics.median(s.wall_s for s in decode) if decode else float("nan")
        overhead = statistics.median(s.wall_s - s.kernel_s for s in decode) if decode else float("nan")
        return LatencyResult(
            batch_size=workload.batch_size,
            input_len=workload.input_len,
            output_len=workload.output_len,
            runs=len(runs),
            prefill_tokens_per_s=workload.batch_size * workload.input_len / prefill,
            prefill_s=prefill,
            decode_tokens_per_s=workload.batch_size / step,
            decode_step_ms=step * 1e3,
            overhead_us=overhead * 1e6,
            overhead_fraction=overhead / step,
            read_bandwidth_gb_s=bandwidth,
            weight_gb_per_step=self._weight_bytes / 1e9,
            decode_bandwidth_fraction=self._weight_bytes / step / 1e9 / bandwidth,
        )


def weight_bytes_per_step(engine: LoadedEngine) -> int:
    """Packed weights that one decode step reads, over all cores; of an untied embedding it reads single rows only."""
    spec, formats = engine.spec, engine.formats
    shard = ShardSpec.of(spec, engine.info.tensor_parallel_size)
    matrices = [m for i in range(spec.num_layers) for m in layer_matrices(spec, shard, i).values()]
    return shard.tp * sum(m.num_bytes(formats) for m in [*matrices, head_matrix(spec, shard)])
