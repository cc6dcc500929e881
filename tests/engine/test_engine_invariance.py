"""The same request gives the same tokens whatever else is in the batch, however it is chunked, cached or preempted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from neuronserve.server.config import SchedulerConfig
from neuronserve.server.config.formats import Batching
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, SamplingParams
from tests.depth import thorough
from tests.engine.config import engine_config
from tests.engine.mailbox import Mailbox, run_all
from tools.random_checkpoint.writer import Options, write_checkpoint

VOCAB = 256


# Shape, block size, KV cache. tiny-qwen3 in blocks of 32 has its attention on the tile unit where the host has one.
ENGINES = [
    ("tiny-qwen2", 16, "auto"),
    ("tiny-mistral", 32, "auto"),
    ("tiny-qwen3", 32, "auto"),
    ("tiny-gemma2", 16, "auto"),
    ("tiny-olmo2", 32, "auto"),
    ("tiny-phi3", 16, "auto"),
    ("tiny-qwen3", 32, "int8"),
    ("tiny-qwen3", 32, "fp8"),
    ("tiny-mistral", 16, "int8"),
    ("tiny-mistral", 16, "fp8"),
    ("tiny-qwen2-moe", 16, "auto"),
    ("tiny-opt", 16, "auto"),
    ("tiny-opt-after", 16, "auto"),
    ("tiny-gpt2", 32, "auto"),
    ("tiny-neox", 16, "int8"),
    ("tiny-phi", 32, "auto"),
    ("tiny-cohere", 32, "auto"),
    ("tiny-cohere2", 16, "auto"),
]


# Each kind of shape, block and cache; caps, norms over the heads of all cores, windows on all layers, experts, learned
# positions.
OFTEN = (
    ("tiny-qwen2", 16, "auto"),
    ("tiny-gemma2", 16, "auto"),
    ("tiny-olmo2", 32, "auto"),
    ("tiny-qwen3", 32, "int8"),
    ("tiny-mistral", 16, "fp8"),
    ("tiny-qwen2-moe", 16, "auto"),
    ("tiny-opt", 16, "auto"),
)


@pytest.fixture(
    scope="module",
    params=[each if each in OFTEN else thorough(each) for each in ENGINES],
    ids=lambda p: "-".join(map(str, p)),
)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kernel_cache: str):  # type: ignore[no-untyped-def]
    shape, block_size, kv_cache_dtype = request.param
    directory: Path = tmp_path_factory.mktemp("invariance") / shape
    write_checkpoint(shape, directory, Options())
    config = engine_config(
        directory,
        kernel_cache,
        tensor_parallel_size=2,
        block_size=block_size,
        num_blocks_override=4 * 1024 // block_size,
        kv_cache_dtype=kv_cache_dtype,
    )
    loaded = load_engine(config, lambda _: None)
    yield loaded
    loaded.runner.close()


def generate(
    engine: LoadedEngine,
    requests: list[Request],
    *,
    budget: int = 96,
    tokens: int = 1024,
    caching: bool = False,
    batching: Batching = "continuous",
) -> Mailbox:
    """All requests at once, through the real scheduler, whose cache holds `tokens` tokens in each group of layers."""
    limits = SchedulerConfig(
        max_model_len=192, max_num_seqs=8, max_num_batched_tokens=budget, max_num_queued_reqs=64, batching=batching
    )
    size = engine.cache.block_size
    num_blocks = tokens // size * len(engine.cache.groups)
    cache = dataclasses.replace(engine.cache, num_blocks=num_blocks, enable_prefix_caching=caching)
    scheduler = Scheduler(limits, KVCacheManager(cache, copy=engine.placement.kv.copy))
    return run_all(scheduler, engine.runner, requests)


def requests(count: int, shared: int = 0, max_tokens: int = 24) -> list[Request]:
    rng = np.random.default_rng(3)
    prefix = rng.integers(0, VOCAB, shared).tolist()
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.8, top_p=0.95, top_k=50, ignore_eos=True)
    return [
        Request(
            f"r{i}",
            tuple(prefix + rng.integers(0, VOCAB, int(rng.integers(1, 70))).tolist()),
            dataclasses.replace(sampling, seed=i, temperature=0.8 * (i % 3 != 0)),
            arrival_time=float(i),
        )
        for i in range(count)
    ]


def alone(engine: LoadedEngine, some: list[Request]) -> dict[str, list[int]]:
    return {r.request_id: generate(engine, [r]).tokens[r.request_id] for r in some}


Run = Callable[[LoadedEngine, list[Request]], Mailbox]


def test_batching_changes_no_token(engine: LoadedEngine) -> None:
    some = requests(8)
    assert generate(engine, some).tokens == alone(engine, some)


def test_chunking_changes_no_token(engine: LoadedEngine) -> None:
    some = requests(5)
    assert generate(engine, some, budget=11).tokens == alone(engine, some)


def test_neurons_batching_changes_no_token(engine: LoadedEngine) -> None:
    some = requests(8)
    assert generate(engine, some, batching="neuron").tokens == alone(engine, some)


def test_preemption_changes_no_token(engine: LoadedEngine) -> None:
    some = requests(8, max_tokens=80)
    squeezed = generate(engine, some, tokens=256)
    # Where every layer slides, what runs gives back a block for each that it takes, and hardly anybody has to yield.
    assert squeezed.num_preempted > 0 or all(span.window for span in engine.cache.groups)
    assert squeezed.tokens == alone(engine, some)


def test_prefix_hits_change_no_token(engine: LoadedEngine) -> None:
    some = requests(6, shared=50)
    assert generate(engine, some, caching=True).tokens == alone(engine, some)


def test_parts_of_blocks_change_no_token(engine: LoadedEngine) -> None:
    some = requests(4, shared=50)
    cache = KVCacheManager(dataclasses.replace(engine.cache, num_blocks=256), copy=engine.placement.kv.copy)
    limits = SchedulerConfig(max_model_len=192, max_num_seqs=8, max_num_batched_tokens=96)
    found = {one.request_id: run_all(Scheduler(limits, cache), engine.runner, [one]) for one in some}
    assert [found[one.request_id].events[0].num_cached_tokens for one in some] == [0, 50, 50, 50]
    assert {name: each.tokens[name] for name, each in found.items()} == alone(engine, some)
