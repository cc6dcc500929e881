"""Latency and throughput of one loaded model, in process, through the real scheduler and engine.

Latency: a run's first steps compute prompts; its decode figures are those of steps in which every sequence decodes.
Memory bandwidth and matrix products of the host are probed before and after each run, on the same threads.
Throughput: the prefill rate is that of steps with prompt tokens, the decode rate that of steps without; other rates
divide by the time from the first step to the last.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..clock import MonotonicClock
from ..engine.load.loading import LoadedEngine
from ..engine.trace.files import lanes_of
from ..engine.trace.tracer import Tracer
from ..link.messages import TraceReply
from ..models.spec import ModelSpec
from ..placement.matrices import PackedShape, main_format, packed_shapes
from ..placement.shard import ShardSpec
from .ceilings import BandwidthProbe, ProductProbe, product_unit
from .drive import EngineDriver, StepTime
from .options import BatchShape


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """Medians over the runs of one shape. Rates are tokens of all sequences together."""

    batch_size: int
    context_len: int  # tokens before the prompt, found in the cache
    input_len: int
    output_len: int
    runs: int
    prefill_tokens_per_s: float
    prefill_s: float
    decode_tokens_per_s: float
    decode_step_ms: float
    overhead_us: float  # of a decode step: time outside of kernels
    overhead_fraction: float  # of the decode step's time
    sampling_us: float  # of a decode step: choosing the tokens, kernel and all
    sampling_fraction: float  # of the decode step's time
    read_bandwidth_gb_s: float  # of the host, beside the runs
    weight_gb_per_step: float  # packed weights read by one decode step
    cache_gb_per_step: float  # keys and values read by the middle decode step
    # Bytes of weights and cache by the decode step's time, of read_bandwidth_gb_s; None if they came from the host's
    # caches, which are faster than the memory that was probed.
    decode_bandwidth_fraction: float | None
    matmul_isa: str  # instruction set of the kernels that multiply the matrices
    product_unit: str  # unit that multiplies there, such as int8 amx or int16 avx2
    product_tops: float  # of the host, beside the runs, operands in cache; 1e12 operations a second
    prefill_tops: float  # operations of the prefill's matrices divided by all of its time
    prefill_tile_fraction: float  # prefill_tops of product_tops


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Memory bandwidth and matrix products of the host, from one probe."""

    read_gb_s: float
    product_tops: float


class LatencyBench:
    """Latency of shapes on one engine."""

    def __init__(self, engine: LoadedEngine, driver: EngineDriver) -> None:
        self._engine, self._driver = engine, driver
        self._reads = BandwidthProbe(engine.runner.pool)
        self._products = ProductProbe(engine.runner.pool, product_unit(main_format(engine.spec, engine.formats)))

    def measure(self, shape: BatchShape, runs: int) -> LatencyResult:
        """Return medians of `runs` runs after a first one. Raises SettingsError when the shape cannot fit."""
        self._driver.require_room(shape)
        self._driver.run(shape)
        steps: list[list[StepTime]] = []
        ceilings = [self._probe()]
        for _ in range(runs):
            steps.append(self._driver.run(shape))
            ceilings.append(self._probe())
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
            decode_bandwidth_fraction=reads
            if (reads := (weights + cache) / step / 1e9 / host.read_gb_s) <= 1
            else None,
            matmul_isa=self._engine.info.kernels["matmul"],
            product_unit=self._products.unit.name,
            product_tops=host.product_tops,
            prefill_tops=prefill_tops,
            prefill_tile_fraction=prefill_tops / host.product_tops,
        )


@dataclass(frozen=True, slots=True)
class ThroughputResult:
    """Medians over the runs of one shape."""

    num_sequences: int
    batch_size: int  # most sequences at once
    input_len: int
    output_len: int
    runs: int
    elapsed_s: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float  # prompt and output
    prefill_tokens_per_s: float
    decode_tokens_per_s: float | None  # None when every step computed prompt tokens too


def measure_throughput(driver: EngineDriver, shape: BatchShape, num_sequences: int, runs: int) -> ThroughputResult:
    """Return medians of `runs` runs after one of a batch that is not counted.

    Raises SettingsError when the shape cannot fit.
    """
    driver.require_room(shape)
    driver.run(shape)
    times = [driver.run(shape, num_sequences) for _ in range(runs)]
    return throughput_of(shape, num_sequences, times)


def tokens_of(shape: BatchShape, num_sequences: int) -> int:
    """Return the tokens that the steps of one run compute: the last one generated is not computed."""
    return num_sequences * (shape.input_len + shape.output_len - 1)


def throughput_of(shape: BatchShape, num_sequences: int, runs: Sequence[Sequence[StepTime]]) -> ThroughputResult:
    """Return the throughput of the steps of all runs."""
    elapsed = statistics.median(sum(step.wall_s for step in steps) for steps in runs)
    output = num_sequences * shape.output_len
    return ThroughputResult(
        num_sequences=num_sequences,
        batch_size=shape.batch_size,
        input_len=shape.input_len,
        output_len=shape.output_len,
        runs=len(runs),
        elapsed_s=elapsed,
        requests_per_s=num_sequences / elapsed,
        output_tokens_per_s=output / elapsed,
        total_tokens_per_s=(output + num_sequences * shape.input_len) / elapsed,
        prefill_tokens_per_s=statistics.median(_prefill_rate(steps) for steps in runs),
        decode_tokens_per_s=_decode_rate(runs),
    )


def _prefill_rate(steps: Sequence[StepTime]) -> float:
    with_prompts = [step for step in steps if step.num_prefill_tokens]
    return sum(s.num_prefill_tokens for s in with_prompts) / sum(s.wall_s for s in with_prompts)


def _decode_rate(runs: Sequence[Sequence[StepTime]]) -> float | None:
    rates = []
    for steps in runs:
        pure = [step for step in steps if not step.num_prefill_tokens]
        if pure:
            rates.append(sum(s.num_decode_tokens for s in pure) / sum(s.wall_s for s in pure))
    return statistics.median(rates) if rates else None


def chosen_share(model: ModelSpec, num_tokens: int) -> float:
    """Share of a layer's experts that `num_tokens` tokens use, if all experts are equally likely."""
    experts = model.experts
    return 1.0 if experts is None else 1 - (1 - experts.per_token / experts.count) ** num_tokens


def weight_bytes_per_step(engine: LoadedEngine, batch: int) -> float:
    """Bytes of packed weights that a decode step of `batch` tokens reads, over all cores.

    An untied embedding and experts without a token are left out.
    """
    layers, head = _matrices(engine)
    read = sum(_share(engine.spec, m, batch) * m.num_bytes(engine.formats) for m in [*layers, head])
    return engine.info.tensor_parallel_size * read


def cache_bytes_per_step(engine: LoadedEngine, batch: int, num_tokens: int) -> int:
    """Bytes of keys and values that a decode step of `batch` sequences of `num_tokens` tokens reads, over all cores."""
    model, cache, kv = engine.spec, engine.cache, engine.placement.kv
    largest = max(each.num_kv_heads * each.head_dim for each in model.attentions)
    seen = sum(
        (num_tokens - each.span.num_behind(num_tokens - 1)) * each.num_kv_heads * each.head_dim
        for each in model.attention_layers
    )
    slots = cache.num_blocks * cache.block_size  # tokens whose K and V of the largest layer a core holds
    return batch * len(kv.shards) * seen * kv.num_tensors * kv.tensor_bytes // (slots * largest)


def _share(model: ModelSpec, matrix: PackedShape, num_tokens: int) -> float:
    """Share of a layer's matrices of this kind that is read, on average."""
    return chosen_share(model, num_tokens) if matrix.linear.is_of_expert else 1.0


def prefill_operations(engine: LoadedEngine, num_tokens: int, num_samples: int) -> float:
    """Multiplications and additions of the matrices for `num_tokens` prompt tokens, `num_samples` of them sampled.

    Counted over all cores with the packed sizes of the matrices. Attention is left out.
    """
    layers, head = _matrices(engine)
    each = num_tokens * sum(_share(engine.spec, m, 1) * m.n * m.k for m in layers) + num_samples * head.n * head.k
    return 2 * engine.info.tensor_parallel_size * each


def _matrices(engine: LoadedEngine) -> tuple[list[PackedShape], PackedShape]:
    """Return the matrices of the layers, and the output layer."""
    shard = ShardSpec.of(engine.spec, engine.info.tensor_parallel_size)
    *layers, head = packed_shapes(engine.spec, shard)
    return layers, head
