"""Driver of a loaded engine: real scheduler, cache and kernels, step by step, without HTTP.

Requests have random distinct prompts and all arrive at once; a context before the prompt is cached (depth.py). With
adapters, requests use them in turn.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ..clock import MonotonicClock
from ..engine.load.loading import LoadedEngine
from ..engine.loop import EngineLoop
from ..engine.trace.tracer import Tracer
from ..errors import SettingsError
from ..kv_cache.manager import KVCacheManager
from ..link.messages import Add, Command, Tokens
from ..scheduler.scheduler import Scheduler
from ..scheduler.speculative import scheduler_of
from ..types import Request, SamplingParams
from .depth import fill_blocks, hold_contexts, require_whole_blocks
from .options import BatchShape


@dataclass(frozen=True, slots=True)
class StepTime:
    """One turn of the engine loop."""

    wall_s: float
    kernel_s: float
    sampling_s: float  # kernel and host time of the sampler, included in both above
    num_prefill_tokens: int
    num_decode_tokens: int


class _Queue:
    """Inbox and outbox of a loop whose steps the driver makes."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.last: Tokens | None = None

    def drain(self, timeout_s: float) -> list[Command]:
        del timeout_s
        commands, self.commands = self.commands, []
        return commands

    def put(self, tokens: Tokens) -> None:
        self.last = tokens


class EngineDriver:
    """Runs shapes on one engine, each from an empty cache; `on_tokens` receives the number of tokens of each step."""

    def __init__(self, engine: LoadedEngine, seed: int = 0, on_tokens: Callable[[int], None] = lambda _: None) -> None:
        self._engine, self._on_tokens = engine, on_tokens
        self._random = random.Random(seed)
        self._num_filled = 0  # blocks that hold keys and values, counted from the first

    def require_room(self, shape: BatchShape) -> None:
        """Raise SettingsError when the shape cannot fit."""
        longest, before = self._engine.info.max_model_len, "context_len + " if shape.context_len else ""
        if shape.total_len > longest:
            raise SettingsError(f"{before}input_len + output_len is {shape.total_len}: max_model_len is {longest}")
        require_whole_blocks(shape.context_len, self._engine.cache.block_size)
        limit = self._engine.scheduler.max_num_seqs
        if shape.batch_size > limit:
            raise SettingsError(f"batch_size is {shape.batch_size}: max_num_seqs is {limit}")

    def run(self, shape: BatchShape, num_sequences: int | None = None, tracer: Tracer | None = None) -> list[StepTime]:
        """Run `num_sequences` sequences (default: one batch), at most `batch_size` of them at once.

        `tracer`, if given, records the run. Raises SettingsError when the cache cannot hold the contexts.
        """
        count = num_sequences or shape.batch_size
        config = self._engine.scheduler
        config = replace(
            config,
            max_num_seqs=shape.batch_size,
            max_num_queued_reqs=max(config.max_num_queued_reqs, count),
        )
        queue = _Queue()
        requests = list(self._requests(shape, count))
        cache = KVCacheManager(replace(self._engine.cache, enable_prefix_caching=shape.context_len > 0))
        if shape.context_len:
            self._fill(hold_contexts(cache, requests, shape.context_len), shape)
        scheduler = scheduler_of(config, cache)
        runner, clock = self._engine.runner, MonotonicClock()
        if tracer is None:
            loop = EngineLoop(scheduler, runner, clock, queue, queue)
        else:
            loop = EngineLoop(scheduler, tracer.runner(runner), clock, queue, tracer.outbox(queue))
            tracer.observe(requests)
        queue.commands = [Add(request) for request in requests]
        return list(self._steps(loop, queue, scheduler))

    def _fill(self, highest: int, shape: BatchShape) -> None:
        """Give the blocks up to `highest` keys and values, the first of them by computing a prompt."""
        cache = self._engine.cache
        if not self._num_filled:
            prompt_len = min(shape.context_len, cache.max_chunk) // cache.block_size * cache.block_size
            self.run(BatchShape(1, prompt_len, 1))
            self._num_filled = len(cache.groups) * prompt_len // cache.block_size
        self._num_filled = fill_blocks(self._engine, self._num_filled, highest)

    def _requests(self, shape: BatchShape, count: int) -> Iterator[Request]:
        adapters = [adapter.digest for adapter in self._engine.info.adapters] or [""]
        for i in range(count):
            prompt_len = shape.context_len + shape.input_len
            prompt = tuple(self._random.randrange(self._engine.info.vocab_size) for _ in range(prompt_len))
            sampling = SamplingParams(
                max_tokens=shape.output_len, ignore_eos=True, seed=i, **dataclasses.asdict(shape.drawing)
            )
            lora = adapters[i % len(adapters)]
            yield Request(f"bench-{i}", prompt, sampling, arrival_time=time.monotonic(), lora=lora)

    def _steps(self, loop: EngineLoop, queue: _Queue, scheduler: Scheduler) -> Iterator[StepTime]:
        runner = self._engine.runner
        pool = runner.pool
        while queue.commands or scheduler.has_work:
            busy, sampling, begin = pool.busy_s, runner.sampling_s, time.perf_counter()
            loop.step()
            wall = time.perf_counter() - begin
            assert queue.last is not None
            report = queue.last.report
            self._on_tokens(report.num_prefill_tokens + report.num_decode_tokens)
            kernels, sampling = pool.busy_s - busy, runner.sampling_s - sampling
            yield StepTime(wall, kernels, sampling, report.num_prefill_tokens, report.num_decode_tokens)
