"""Generation by this project's own engine: scheduler, paged cache and kernels, without HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from neuronserve.server.clock import MonotonicClock
from neuronserve.server.config import EngineConfig
from neuronserve.server.config.formats import Quantization, WeightFormat
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, SamplingParams
from tools.default_model.backend import END_IDS, GeneratedIds, until_end

MAX_MODEL_LEN = 2048
QUANTIZED: dict[str, Quantization] = {name: name for name in get_args(Quantization)}


class EngineBackend:
    """An engine on one emulated inf2.xlarge."""

    def __init__(self, directory: Path, weights: WeightFormat, kernel_cache_dir: Path) -> None:
        config = EngineConfig(
            model_path=str(directory),
            device="inf2.xlarge",
            tensor_parallel_size=1,
            dtype="float32" if weights == "float32" else "bfloat16",
            quantization=QUANTIZED.get(weights),
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=32,
            max_num_batched_tokens=512,
            max_num_queued_reqs=100_000,
            block_size=16,
            enable_prefix_caching=True,
            device_memory_utilization=0.9,
            num_blocks_override=4096,
            cpu_threads=2,
            kernel_cache_dir=str(kernel_cache_dir),
        )
        self.engine = load_engine(config, lambda *_: None)
        self.clock = MonotonicClock()

    def generate(self, prompts: Sequence[list[int]], max_tokens: int) -> list[GeneratedIds]:
        """Generate greedy answers, as many at once as the scheduler takes."""
        scheduler = Scheduler(self.engine.scheduler, KVCacheManager(self.engine.cache))
        for i, prompt in enumerate(prompts):
            sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, eos_token_ids=END_IDS)
            scheduler.add(Request(str(i), tuple(prompt), sampling, arrival_time=self.clock.now()))
        generated: list[list[int]] = [[] for _ in prompts]
        while scheduler.has_work:
            plan = scheduler.schedule(self.clock.now())
            result = self.engine.runner.execute(plan)
            for event in scheduler.apply(plan, result, self.clock.now()):
                if event.error:
                    raise RuntimeError(f"prompt {event.request_id}: {event.error}")
                if event.token_id is not None:
                    generated[int(event.request_id)].append(event.token_id)
        return [until_end(ids) for ids in generated]

    def nats(self, ids: list[int]) -> list[float]:
        logits = self.engine.runner.logits(ids)[:-1].astype(np.float64)
        top = logits.max(axis=1)
        total = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        values: list[float] = (total - logits[np.arange(len(ids) - 1), ids[1:]]).tolist()
        return values
