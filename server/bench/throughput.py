"""Offline throughput of one loaded model: many sequences at once through the real scheduler and engine, no HTTP.

The prefill rate is that of steps with prompt tokens, the decode rate that of steps without; other rates divide by the
time from the first step to the last.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from neuronserve.server.bench.drive import EngineDriver, StepTime
from neuronserve.server.bench.options import BatchShape
from neuronserve.server.engine.load.loading import LoadedEngine


@dataclass(frozen=True, slots=True)
class ThroughputResult:
    """Medians over the runs of one shape."""

    num_sequences: int
    batch_size: int  # at most so many at once
    input_len: int
    output_len: int
    runs: int
    elapsed_s: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float  # prompt and output
    prefill_tokens_per_s: float
    decode_tokens_per_s: float | None  # None where every step computed prompt tokens too

    def as_json(self) -> dict[str, float | None]:
        return asdict(self)


class ThroughputBench:
    """Runs shapes on one engine. `on_tokens` is called with the tokens of every step, for a progress bar."""

    def __init__(self, engine: LoadedEngine, seed: int = 0, on_tokens: Callable[[int], None] = lambda _: None) -> None:
        self._driver = EngineDriver(engine, seed, on_tokens)

    def measure(self, shape: BatchShape, num_sequences: int, runs: int) -> ThroughputResult:
        """Medians of `runs` runs after one that is not counted. Raises SettingsError when the shape cannot fit."""
        self._driver.require_room(shape)
        self._driver.run(shape)
        times = [self._driver.run(shape, num_sequences) for _ in range(runs)]
        return result_of(shape, num_sequences, times)


def tokens_of(shape: BatchShape, num_sequences: int) -> int:
    """Tokens that the steps of one run compute: the last one generated is not computed."""
    return num_sequences * (shape.input_len + shape.output_len - 1)


def result_of(shape: BatchShape, num_sequences: int, runs: Sequence[Sequence[StepTime]]) -> ThroughputResult:
    """The result of the steps of all runs."""
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
