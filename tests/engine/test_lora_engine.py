"""Several adapters in one engine: what a request generates depends on its adapter and on nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from neuronserve.server.config import LoraConfig, LoraModule
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.errors import AdapterSlotsFull, CheckpointError
from neuronserve.server.types import Request
from tests.depth import representative
from tests.engine.config import engine_config
from tests.engine.test_engine_invariance import alone, generate, requests
from tests.engine.test_speculative_engine import SPECULATION, num_accepted, same
from tools.random_checkpoint.adapter import adapter_tensors, write_adapter
from tools.random_checkpoint.writer import Options, write_checkpoint

RANKS = {"eight": 8, "one": 1, "nineteen": 19}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    write_checkpoint("tiny-qwen3", folder / "model", Options())
    for seed, (name, rank) in enumerate(RANKS.items()):
        write_adapter(folder / name, adapter_tensors(folder / "model", rank, seed=seed))
    return folder


@pytest.fixture(scope="module", params=representative(["none", "int8", "fp8"], "none", "int8"))
def engine(request: pytest.FixtureRequest, folder: Path, kernel_cache: str) -> Iterator[LoadedEngine]:
    config = engine_config(
        folder / "model",
        kernel_cache,
        tensor_parallel_size=2,
        quantization=request.param,
        speculation=SPECULATION,
        lora=LoraConfig(4, 20, tuple(LoraModule(name, str(folder / name)) for name in RANKS)),
    )
    loaded = load_engine(config, lambda _: None)
    yield loaded
    loaded.runner.close()


def mixed(engine: LoadedEngine, count: int, shared: int = 0, max_tokens: int = 24) -> list[Request]:
    """Requests of every adapter and of none, in turn."""
    digests = ["", *(adapter.digest for adapter in engine.info.adapters)]
    some = requests(count, shared, max_tokens)
    return [dataclasses.replace(each, lora=digests[i % 4]) for i, each in enumerate(some)]


def test_adapters_in_one_batch_change_no_token(engine: LoadedEngine) -> None:
    some = mixed(engine, 8)
    together, plain = generate(engine, some).tokens, generate(engine, requests(8)).tokens
    assert together == alone(engine, some)
    assert [together[r.request_id] == plain[r.request_id] for r in some] == [not r.lora for r in some]


def test_chunking_changes_no_token(engine: LoadedEngine) -> None:
    some = mixed(engine, 5)
    assert generate(engine, some, budget=11).tokens == alone(engine, some)


def test_preemption_changes_no_token(engine: LoadedEngine) -> None:
    some = mixed(engine, 8, max_tokens=80)
    squeezed = generate(engine, some, tokens=256)
    assert squeezed.num_preempted > 0
    assert squeezed.tokens == alone(engine, some)


def test_drafts_change_no_token(engine: LoadedEngine) -> None:
    assert num_accepted(same(engine, mixed(engine, 8))) > 0


def test_adapters_share_no_prefix(engine: LoadedEngine) -> None:
    """Eight requests begin alike; those of one adapter share what it computed, and no other's."""
    some = mixed(engine, 8, shared=50)
    cached = generate(engine, some, caching=True, budget=64)
    assert cached.tokens == alone(engine, some)
    prompt = requests(1, shared=50)[0]
    digests = ["", *(adapter.digest for adapter in engine.info.adapters)]
    in_turn = [
        dataclasses.replace(prompt, request_id=f"{digest}-{i}", lora=digest, arrival_time=float(i))
        for i in range(2)
        for digest in digests
    ]
    events = generate(engine, in_turn, caching=True, budget=64).events
    hits = {event.request_id: event.num_cached_tokens for event in events}
    assert [hits[each.request_id] for each in in_turn[:4]] == [0, 0, 0, 0]


def test_logits_of_rows_are_bit_for_bit_those_of_rows_alone(engine: LoadedEngine) -> None:
    """Chunks of prompts of different lengths, of two adapters, against the same tokens in one go."""
    ids = np.random.default_rng(4).integers(0, 256, 90).tolist()
    for adapter in engine.info.adapters:
        whole = engine.runner.logits(ids, adapter.digest)
        assert np.array_equal(engine.runner.logits(ids[:37], adapter.digest), whole[:37])
        assert not np.array_equal(whole, engine.runner.logits(ids))


def test_an_adapter_comes_and_goes(engine: LoadedEngine, folder: Path, tmp_path: Path) -> None:
    bank, ids = engine.adapters, list(range(60))
    assert bank is not None
    before = {adapter.name: engine.runner.logits(ids, adapter.digest) for adapter in engine.info.adapters}
    path = write_adapter(tmp_path / "more", adapter_tensors(folder / "model", 2, ("v_proj",), seed=9))
    digest, rank = bank.load(str(path))
    assert rank == 2
    again = bank.load(str(path))
    logits = engine.runner.logits(ids, digest)
    other = write_adapter(tmp_path / "other", adapter_tensors(folder / "model", 20, seed=10))
    with pytest.raises(AdapterSlotsFull, match="all 4 adapters of max_loras"):
        bank.load(str(other))
    bank.unload(digest)
    assert again == (digest, rank)
    assert np.array_equal(engine.runner.logits(ids, digest), logits)  # it was loaded twice
    bank.unload(digest)
    digest, _ = bank.load(str(other))  # of more modules, in the same slot
    changed = engine.runner.logits(ids, digest)
    bank.unload(digest)
    digest, _ = bank.load(str(path))
    assert np.array_equal(engine.runner.logits(ids, digest), logits)
    assert not np.array_equal(changed, logits)
    bank.unload(digest)
    for adapter in engine.info.adapters:
        assert np.array_equal(engine.runner.logits(ids, adapter.digest), before[adapter.name])


def test_a_rank_over_the_limit_is_refused(engine: LoadedEngine, folder: Path, tmp_path: Path) -> None:
    assert engine.adapters is not None
    path = write_adapter(tmp_path / "wide", adapter_tensors(folder / "model", 21, ("q_proj",)))
    with pytest.raises(CheckpointError, match=r"q_proj has rank 21, more than max_lora_rank 20"):
        engine.adapters.load(str(path))
