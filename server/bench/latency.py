"""Prefill and decode speed of one loaded model, in process, beside the host's ceilings.

A run's first steps compute prompts; steps in which every sequence decodes are the decode figures. Memory bandwidth and
matrix products are probed before and after each run, on the same threads.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from neuronserve.server.bench.ceilings import BandwidthProbe, ProductProbe, product_unit
from neuronserve.server.bench.drive import EngineDriver, StepTime
from neuronserve.server.bench.options import BatchShape
from neuronserve.server.bench.work import cache_bytes_per_step, prefill_operations, weight_bytes_per_step
from neuronserve.server.clock import MonotonicClock
from neuronserve.server.engine.load.loading import LoadedEngine
from neuronserve.server.engine.trace.files import lanes_of
from neuronserve.server.engine.trace.tracer import Tracer
from neuronserve.server.link.messages import TraceReply
from neuronserve.server.placement.matrices import main_format


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """Medians over the runs of one shape. Rates are tokens of all sequences together."""

    batch_size: int
    context_len: int  # tokens before the prompt that were not computed
    input_len: int
    output_len: int
    runs: int
    prefill_tokens_per_s: float
    prefill_s: float
    decode_tokens_per_s: float
    decode_step_ms: float
    overhead_us: float  # of a decode step: all that is not a kernel
    overhead_fraction: float  # of the decode step's time
    sampling_us: float  # of a decode step: choosing the tokens, kernel and all
    sampling_fraction: float  # of the decode step's time
    read_bandwidth_gb_s: float  # of the host, beside the runs
    weight_gb_per_step: float  # packed weights read by one decode step
    cache_gb_per_step: float  # keys and values read by the middle decode step
    decode_bandwidth_fraction: float  # of both
    matmul_isa: str  # instruction set of the kernels that multiply the matrices
    product_unit: str  # what multiplies there, such as int8 amx or int16 avx2
    product_tops: float  # of the host, beside the runs, operands in cache; 1e12 operations a second
    prefill_tops: float  # operations of the prefill's matrices by all of its time
    prefill_tile_fraction: float  # prefill_tops of product_tops

    def as_json(self) -> dict[str, float | str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Memory bandwidth and matrix products of the host, from one probe."""

    read_gb_s: float
    product_tops: float


class LatencyBench:
    """Runs shapes on one engine. `on_run` is called after each run, for a progress bar."""

    def __init__(self, engine: LoadedEngine, seed: int = 0, on_run: Callable[[], None] = lambda: None) -> None:
        self._engine, self._on_run = engine, on_run
        self._driver = EngineDriver(engine, seed)
        self._reads = BandwidthProbe(engine.runner.pool)
        self._products = ProductProbe(engine.runner.pool, product_unit(main_format(engine.spec, engine.formats)))

    def measure(self, shape: BatchShape, runs: int) -> LatencyResult:
        """Medians of `runs` runs after one that is not counted. Raises SettingsError when the shape cannot fit."""
        self._driver.require_room(shape)
        self._driver.run(shape)
        self._on_run()
        steps: list[list[StepTime]] = []
        ceilings = [self._probe()]
        for _ in range(runs):
            steps.append(self._driver.run(shape))
            ceilings.append(self._probe())
            self._on_run()
        best = Ceilings(
            statistics.median(c.read_gb_s for c in ceilings), statistics.median(c.product_tops for c in ceilings)
        )
        return self._result(shape, steps, best)

    def trace(self, shape: BatchShape, max_events: int, file: Path) -> TraceReply:
        """Record one run of a shape that has been measured. Raises OSError when the file cannot be written."""
        engine = self._engine
        tracer = Tracer(lanes_of(engine.info), MonotonicClock(), max_events, engine.runner, engine.pricer)
        tracer.start()
        self._driver.run(shape, tracer=tracer)
        return tracer.stop(file)

    def _probe(self) -> Ceilings:
        return Ceilings(self._reads.measure(), self._products.measure())

    def _result(self, shape: BatchShape, runs: list[list[StepTime]], host: Ceilings) -> LatencyResult:
        batch = shape.batch_size
        prefill = statistics.median(sum(s.wall_s for s in steps if s.num_prefill_tokens) for steps in runs)
        decode = [s for steps in runs for s in steps if s.num_decode_tokens == batch]
        step = statistics.median(s.wall_s for s in decode) if decode else float("nan")
        overhead = statistics.median(s.wall_s - s.kernel_s for s in decode) if decode else float("nan")
        sampling = statistics.median(s.sampling_s for s in decode) if decode else float("nan")
        weights = weight_bytes_per_step(self._engine, batch)
        cache = cache_bytes_per_step(self._engine, batch, shape.total_len - shape.output_len // 2)
        prefill_tops = prefill_operations(self._engine, batch * shape.input_len, batch) / prefill / 1e12
        return LatencyResult(
            batch_size=batch,
            context_len=shape.context_len,
            input_len=shape.input_len,
            output_len=shape.output_len,
            runs=len(runs),
            prefill_tokens_per_s=batch * shape.input_len / prefill,
            prefill_s=prefill,
            decode_tokens_per_s=batch / step,
            decode_step_ms=step * 1e3,
            overhead_us=overhead * 1e6,
            overhead_fraction=overhead / step,
            sampling_us=sampling * 1e6,
            sampling_fraction=sampling / step,
            read_bandwidth_gb_s=host.read_gb_s,
            weight_gb_per_step=weights / 1e9,
            cache_gb_per_step=cache / 1e9,
            decode_bandwidth_fraction=(weights + cache) / step / 1e9 / host.read_gb_s,
            matmul_isa=self._engine.info.kernels["matmul"],
            product_unit=self._products.unit.name,
            product_tops=host.product_tops,
            prefill_tops=prefill_tops,
            prefill_tile_fraction=prefill_tops / host.product_tops,
        )
