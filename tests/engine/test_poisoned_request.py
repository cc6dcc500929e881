"""A request whose activations are not finite ends with an error; the engine and its batch mates notice nothing.

Checkpoints with such numbers are refused, so they are put where the embedding lies once it is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronserve.server.config import CacheConfig, SchedulerConfig
from neuronserve.server.engine.load import machine
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.engine.lowering import build_program
from neuronserve.server.engine.operands import Placement
from neuronserve.server.engine.sampler import NOT_A_NUMBER
from neuronserve.server.kernels.program import Program
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, SamplingParams
from tests.depth import representative
from tests.engine.config import engine_config
from tests.engine.mailbox import Mailbox, run_all
from tools.random_checkpoint.writer import Options, write_checkpoint

NAN_TOKEN, INF_TOKEN = 77, 78  # their embeddings hold one such number each
BLOCK, BLOCKS = 32, 40


def poisoned_program(placement: Placement, *args: Any, **options: Any) -> Program:
    assert placement.weights.embedding is not None
    table = placement.weights.embedding[0].array(np.uint16, -1, placement.buffers.widths.hidden)
    table[NAN_TOKEN, 3], table[INF_TOKEN, 5] = 0x7FC0, 0x7F80
    return build_program(placement, *args, **options)


@pytest.fixture(scope="module", params=representative(["auto", "int8", "fp8"], "auto"))
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kernel_cache: str):  # type: ignore[no-untyped-def]
    directory: Path = tmp_path_factory.mktemp("poisoned") / "model"
    write_checkpoint("tiny-qwen3", directory, Options())
    config = engine_config(
        directory, kernel_cache, block_size=BLOCK, num_blocks_override=BLOCKS, kv_cache_dtype=request.param
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "build_program", poisoned_program)
        loaded = load_engine(config, lambda _: None)
    yield loaded
    loaded.runner.close()


class _Server:
    """One scheduler and cache over the engine, for several batches of requests."""

    def __init__(self, engine: LoadedEngine) -> None:
        limits = SchedulerConfig(max_model_len=192, max_num_seqs=8, max_num_batched_tokens=96, max_num_queued_reqs=64)
        self.scheduler = Scheduler(limits, KVCacheManager(CacheConfig(BLOCKS, BLOCK, True)))
        self.engine = engine

    def generate(self, requests: list[Request]) -> Mailbox:
        return run_all(self.scheduler, self.engine.runner, requests)


def request(name: str, prompt: list[int]) -> Request:
    sampling = SamplingParams(
        max_tokens=20, temperature=0.0, ignore_eos=True, logit_bias=((NAN_TOKEN, -100.0), (INF_TOKEN, -100.0))
    )
    return Request(name, tuple(prompt), sampling, arrival_time=0.0)


def healthy() -> list[Request]:
    rng = np.random.default_rng(5)
    return [request(f"r{i}", (rng.integers(100, 300, 11 + 23 * i)).tolist()) for i in range(4)]


def poisoned() -> list[Request]:
    rng = np.random.default_rng(6)
    prompts = [rng.integers(100, 300, 50 + i).tolist() for i in range(2)]
    prompts[0][20], prompts[1][-1] = NAN_TOKEN, INF_TOKEN
    return [request(f"bad{i}", prompt) for i, prompt in enumerate(prompts)]


def test_only_the_poisoned_requests_end_and_the_others_get_their_tokens(engine: LoadedEngine) -> None:
    alone = _Server(engine).generate(healthy())
    assert not alone.errors
    assert all(len(tokens) == 20 for tokens in alone.tokens.values())
    server, bad = _Server(engine), poisoned()
    mixed = server.generate([bad[0], *healthy(), bad[1]])
    assert mixed.errors == {"bad0": NOT_A_NUMBER, "bad1": NOT_A_NUMBER}
    assert mixed.tokens == alone.tokens
    again = server.generate(healthy())  # in blocks that the poisoned ones have held, and with cached prefixes
    assert again.tokens == alone.tokens
    assert not again.errors
