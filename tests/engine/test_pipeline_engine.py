"""Pipeline stages change no token: the ring of stages beside one engine with all layers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from neuronserve.server.clock import ManualClock
from neuronserve.server.config import CacheConfig, EngineConfig, SchedulerConfig
from neuronserve.server.config.pipeline import PipelineConfig
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.engine.loop import EngineLoop
from neuronserve.server.engine.pipeline.ring import Ring
from neuronserve.server.engine.pipeline.stage import run_stage
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.link.stage_ends import local_ends
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, SampledToken, SamplingParams, StepPlan, StepResult
from tests.engine.config import engine_config
from tests.engine.mailbox import Mailbox
from tools.random_checkpoint.writer import Options, write_checkpoint


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipeline")


@contextmanager
def loaded(config: EngineConfig) -> Iterator[LoadedEngine]:
    """Load an engine; its other stages are threads of this process."""
    controls, ends = local_ends(config.pipeline.size)
    threads = [threading.Thread(target=run_stage, args=(end,)) for end in ends]
    for thread in threads:
        thread.start()
    try:
        ring = Ring(config, controls, lambda _: None) if controls else None
        engine = load_engine(config, lambda _: None, ring)
        yield engine
        engine.runner.close()
    finally:
        for control in controls:
            control.close()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def run(engine: LoadedEngine, requests: list[Request], depth: int = 1) -> Mailbox:
    mailbox = Mailbox(requests)
    scheduler = Scheduler(engine.scheduler, KVCacheManager(engine.cache))
    loop = EngineLoop(scheduler, engine.runner, ManualClock(), mailbox, mailbox, depth)
    loop.step()
    while scheduler.has_work:
        loop.step()
    loop.step()
    return mailbox


def requests() -> list[Request]:
    greedy = SamplingParams(12, temperature=0.0, logprobs=2)
    seeded = SamplingParams(12, temperature=1.0, seed=5, top_p=0.9, repetition_penalty=1.2)
    shown = SamplingParams(6, temperature=0.0, prompt_logprobs=1)
    prompts = [tuple(range(3, 3 + length)) for length in (1, 7, 40, 150, 33)]
    return [
        Request(f"r{i}-{j}", prompt, replace(sampling, max_tokens=sampling.max_tokens + i), 0.0)
        for i, prompt in enumerate(prompts)
        for j, sampling in enumerate((greedy, seeded, shown))
    ]


def outcome(mailbox: Mailbox) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for each in mailbox.events:
        found.setdefault(each.request_id, []).append(
            (each.token_id, each.finish_reason, each.logprobs, each.prompt_logprobs)
        )
    return found


def test_sequences_that_decode_are_divided_into_batches() -> None:
    config = SchedulerConfig(64, max_num_seqs=8, max_num_batched_tokens=64, num_batches=3)
    scheduler = Scheduler(config, KVCacheManager(CacheConfig(64, 16)))
    for i in range(7):
        scheduler.add(Request(f"r{i}", (1, 2, 3), SamplingParams(8, temperature=0.0), 0.0))
    first = scheduler.schedule(0.0)
    scheduler.apply(first, computed(first), 0.0)
    plans = [scheduler.schedule(0.0) for _ in range(4)]
    assert [len(plan.decode) for plan in plans] == [3, 3, 1, 0]
    for plan in plans:
        scheduler.apply(plan, computed(plan), 0.0)
    assert not scheduler.audit()
    assert len(scheduler.schedule(0.0).decode) == 3


def computed(plan: StepPlan) -> StepResult:
    return StepResult(plan.step_id, {seq.request_id: SampledToken(7) for seq in plan.seqs if seq.needs_sample}, 0.0)


@pytest.mark.parametrize(
    ("name", "stages", "changes"),
    [
        ("tiny-llama", 2, {}),
        ("tiny-llama", 3, {"tensor_parallel_size": 2, "device": "inf2.24xlarge"}),
        ("tiny-opt", 3, {"dtype": "float32"}),
        ("tiny-qwen3-moe", 2, {"quantization": "int8"}),
        ("tiny-gpt2", 2, {"kv_cache_dtype": "int8", "cpu_threads": 1}),
    ],
)
def test_stages_give_the_tokens_of_one(
    models: Path, kernel_cache: str, name: str, stages: int, changes: dict[str, object]
) -> None:
    if not (models / name).exists():
        write_checkpoint(name, models / name, Options())
    config = engine_config(models / name, kernel_cache, **{"device": "inf2.24xlarge", **changes})
    with loaded(config) as engine:
        expected = outcome(run(engine, requests()))
        logits = engine.runner.logits(range(20))
    with loaded(replace(config, pipeline=PipelineConfig(stages))) as engine:
        assert len(engine.info.memory) == stages * config.tensor_parallel_size
        assert outcome(run(engine, requests(), depth=stages)) == expected
        np.testing.assert_array_equal(engine.runner.logits(range(20)), logits)
