"""Layers that look back differently far, through the real scheduler, many windows long: chunks, hits and preemption.

Every token that is generated is the best by transformers' logits of the whole sequence, and its log probability theirs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax

from neuronserve.server.config import EngineConfig, SchedulerConfig
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, SamplingParams, TokenEvent
from tests.depth import thorough
from tools.golden.oracle import Oracle
from tools.random_checkpoint.shapes import SHAPES

MAX_MODEL_LEN, CHUNK, BLOCK_SIZE = 320, 24, 16
NUM_REQUESTS, SHARED, NUM_TOKENS = 5, 90, 130  # tokens: windows are 19, and chunks of Llama 4 are 21
TOLERANCE = 1e-4  # of log probabilities
CASES = [
    ("tiny-gemma3", 1),
    ("tiny-gpt-oss", 1),
    ("tiny-llama4", 2),
    thorough(("tiny-gemma2", 2)),
    thorough(("tiny-cohere2", 1)),
    thorough(("tiny-olmo3", 2)),
    thorough(("tiny-qwen2", 1)),
    thorough(("tiny-mistral", 1)),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-tp".join(map(str, case)))
def case(
    request: pytest.FixtureRequest, checkpoint_of: Callable[[str], Path], kernel_cache: str
) -> Iterator[tuple[LoadedEngine, str]]:
    shape, tp = request.param
    config = EngineConfig(
        model_path=str(checkpoint_of(shape)),
        device="inf2.48xlarge",
        tensor_parallel_size=tp,
        dtype="float32",
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=8,
        max_num_batched_tokens=CHUNK,
        max_num_queued_reqs=8,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=True,
        device_memory_utilization=0.9,
        num_blocks_override=None,
        cpu_threads=2,
        kernel_cache_dir=kernel_cache,
    )
    engine = load_engine(config, lambda _: None)
    yield engine, shape
    engine.runner.close()


def prompts(shape: str) -> list[tuple[int, ...]]:
    """Some begin alike, and one is a part of another."""
    random = np.random.default_rng(5)
    shared = random.integers(0, SHAPES[shape].vocab, SHARED).tolist()
    tails = [random.integers(0, SHAPES[shape].vocab, n).tolist() for n in (0, 40, 3, 70, 21)]
    return [tuple(shared + tail) for tail in tails]


def run(engine: LoadedEngine, shape: str, num_blocks: int) -> tuple[dict[str, list[TokenEvent]], KVCacheManager, int]:
    """The events of all requests, the cache afterwards, and how often one was preempted."""
    cache = KVCacheManager(dataclasses.replace(engine.cache, num_blocks=num_blocks), copy=engine.placement.kv.copy)
    scheduler = Scheduler(SchedulerConfig(MAX_MODEL_LEN, 8, CHUNK), cache)
    sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True, logprobs=3)
    for i, prompt in enumerate(prompts(shape)):
        scheduler.add(Request(str(i), prompt, sampling, arrival_time=float(i)))
    events: dict[str, list[TokenEvent]] = {str(i): [] for i in range(NUM_REQUESTS)}
    num_preempted = 0
    while scheduler.has_work:
        plan = scheduler.schedule(0.0)
        num_preempted += len(plan.preempted)
        for event in scheduler.apply(plan, engine.runner.execute(plan), 0.0):
            events[event.request_id].append(event)
        assert scheduler.audit() == []
    return events, cache, num_preempted


@pytest.mark.parametrize("is_squeezed", [False, True], ids=["roomy", "squeezed"])
def test_what_is_generated_is_what_transformers_would(
    case: tuple[LoadedEngine, str], oracle_of: Callable[[str], Oracle], is_squeezed: bool
) -> None:
    engine, shape = case
    assert any(span.window for span in engine.cache.groups)
    one = engine.cache.blocks_of(SHARED + 70 + NUM_TOKENS)
    events, cache, num_preempted = run(engine, shape, one + 8 if is_squeezed else NUM_REQUESTS * one)
    assert cache.prefix_hits > 0
    assert (num_preempted > 0) == (is_squeezed and len(engine.cache.groups) > 1)
    for i, prompt in enumerate(prompts(shape)):
        tokens = [event.token_id for event in events[str(i)] if event.token_id is not None]
        assert len(tokens) == NUM_TOKENS
        expected = log_softmax(oracle_of(shape).logits([*prompt, *tokens])[len(prompt) - 1 : -1], axis=1)
        for event, row in zip(events[str(i)], expected, strict=True):
            assert event.logprobs is not None
            got = np.array(event.logprobs.top_logprobs)
            assert np.abs(got - np.sort(row)[::-1][:3]).max() <= TOLERANCE
            assert abs(event.logprobs.sampled - row[event.token_id]) <= TOLERANCE
            assert event.logprobs.sampled >= row.max() - TOLERANCE
