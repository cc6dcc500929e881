"""Copies of KV blocks that outlive an engine: which are found by the next one, and which are nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronserve.server.config import AttentionSpan, CacheConfig, SchedulerConfig
from neuronserve.server.device.core import NeuronCore
from neuronserve.server.engine.buffers import KEPT_BYTES, KVPool, PoolBlocks, most_kept
from neuronserve.server.engine.fake_runner import FakeRunner, expected_tokens
from neuronserve.server.engine.kept_blocks import KeptBlocks, Restorer, kept_blocks, model_files
from neuronserve.server.host.shared_file import SharedFile
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.placement.kv_groups import KVPlace
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, SamplingParams, TokenEvent
from tests.api.serving import VOCAB_SIZE, load_fake
from tests.link.test_client import config

SEAL_BYTES = 64
FULL = AttentionSpan()
CACHE = CacheConfig(num_blocks=64, block_size=16)
LIMITS = SchedulerConfig(max_model_len=512, max_num_seqs=8, max_num_batched_tokens=64)
IDENTITY = b"0123456789abcdef"
PROMPT = tuple(random.Random(1).choices(range(VOCAB_SIZE), k=100))


class Engine:
    """An engine without a process: a scheduler, the fake model, and what it keeps."""

    def __init__(
        self, file: SharedFile, cache: CacheConfig = CACHE, num_kept: int = 64, identity: bytes = IDENTITY
    ) -> None:
        self.runner = FakeRunner(cache, VOCAB_SIZE)
        kept = KeptBlocks(file, self.runner, identity, num_kept * (SEAL_BYTES + self.runner.num_bytes))
        self.cache = KVCacheManager(cache, kept)
        self.scheduler = Scheduler(LIMITS, self.cache)
        self._restorer = Restorer(kept, self.cache)
        self.num_computed = 0
        self.events: list[TokenEvent] = []

    def add(self, *requests: Request) -> None:
        self._restorer.observe(requests)
        for request in requests:
            self.scheduler.add(request)

    def run(self, num_steps: int = 10_000) -> list[int]:
        """Steps while there is work, at most so many; the tokens that came."""
        begin = len(self.events)
        for now in range(num_steps):
            if self.scheduler.has_work:
                plan = self.scheduler.schedule(float(now))
                self.num_computed += sum(len(seq.token_ids) for seq in plan.seqs)
                self.events += self.scheduler.apply(plan, self.runner.execute(plan), float(now))
                assert self.scheduler.audit() == []
        return [event.token_id for event in self.events[begin:] if event.token_id is not None]


def request_of(generated: Sequence[int] = (), count: int = 60, name: str = "a", lora: str = "") -> Request:
    sampling = SamplingParams(max_tokens=count)
    return Request(name, PROMPT, sampling, 0.0, lora=lora, generated_token_ids=tuple(generated))


def begun(file: SharedFile, num_steps: int = 32, **options: Any) -> list[int]:
    """An engine that has ended in the middle of a request; what it gave out."""
    engine = Engine(file, **options)
    engine.add(request_of())
    return engine.run(num_steps)


@pytest.mark.parametrize("groups", [(FULL,), (FULL, AttentionSpan(40)), (AttentionSpan(30), AttentionSpan(48, True))])
def test_a_successor_computes_no_whole_block_again(groups: tuple[AttentionSpan, ...]) -> None:
    file, cache = SharedFile("test", 0), replace(CACHE, groups=groups, max_chunk=64)
    given = begun(file, cache=cache)
    engine = Engine(file, cache)
    engine.add(request_of(given))
    rest = engine.run()
    assert given + rest == expected_tokens(PROMPT, 60, VOCAB_SIZE, groups)
    num_known = len(PROMPT) + len(given)
    assert len(given) == 31
    assert engine.num_computed - (len(rest) - 1) == num_known - (num_known - 1) // 16 * 16
    assert engine.events[0].num_cached_tokens == (num_known - 1) // 16 * 16


def test_an_engine_after_the_next_finds_the_copies_of_both() -> None:
    file = SharedFile("test", 0)
    given = begun(file)
    second = Engine(file)
    second.add(request_of(given))
    given += second.run(20)
    third = Engine(file)
    third.add(request_of(given))
    rest = third.run()
    assert given + rest == expected_tokens(PROMPT, 60, VOCAB_SIZE)
    assert third.num_computed - (len(rest) - 1) < 16 + 1


def spoil(file: SharedFile, slot_bytes: int, at: int) -> None:
    """Change a byte of each copy."""
    slot = 0
    while (byte := file.read(1, slot * slot_bytes + at)) != b"":
        file.write([bytes([byte[0] ^ 1])], slot * slot_bytes + at)
        slot += 1
    assert slot > 4


@pytest.mark.parametrize("at", [0, 20, SEAL_BYTES - 1, SEAL_BYTES, SEAL_BYTES + 100])
def test_a_copy_of_which_a_byte_has_changed_is_nothing(at: int) -> None:
    file = SharedFile("test", 0)
    given = begun(file)
    spoil(file, SEAL_BYTES + 8 * CACHE.block_size, at)
    assert_computes_all(Engine(file), given)


def assert_computes_all(engine: Engine, given: list[int]) -> None:
    engine.add(request_of(given))
    rest = engine.run()
    assert given + rest == expected_tokens(PROMPT, 60, VOCAB_SIZE)
    assert engine.num_computed - (len(rest) - 1) == len(PROMPT) + len(given)


def test_a_copy_that_was_being_written_is_nothing() -> None:
    file = SharedFile("test", 0)
    given = begun(file)
    whole = file.read(1 << 20, 0)
    file.clear()
    file.write([whole[: SEAL_BYTES + 8 * CACHE.block_size - 1]], 0)  # of the first block, without which no other counts
    assert_computes_all(Engine(file), given)


def test_what_another_model_has_left_is_nothing() -> None:
    file = SharedFile("test", 0)
    assert_computes_all(Engine(file, identity=bytes(16)), begun(file))


def test_another_adapter_finds_nothing() -> None:
    file = SharedFile("test", 0)
    given = begun(file)
    engine = Engine(file)
    engine.add(request_of(given, lora="11" * 32))
    rest = engine.run()
    assert engine.num_computed - (len(rest) - 1) == len(PROMPT) + len(given)


@pytest.mark.parametrize("forget", ["parent", "command"])
def test_what_was_forgotten_is_nothing(forget: str) -> None:
    file = SharedFile("test", 0)
    first = Engine(file)
    first.add(request_of())
    given = first.run(32)
    if forget == "parent":
        file.clear()
    else:
        first.cache.reset_prefix_cache()
    assert file.read(1, 0) == b""
    assert_computes_all(Engine(file), given)


def test_a_failed_sequence_leaves_nothing() -> None:
    file = SharedFile("test", 0)
    first = Engine(file)
    first.add(request_of())
    given = first.run(32)
    table = first.scheduler.tables["a"]
    blocks = first.cache.open("")
    blocks.tables = (table,)
    first.cache.discard(blocks)
    assert_computes_all(Engine(file), given)


def test_an_engine_touches_nothing_before_its_first_request() -> None:
    """One that loads beside another, which still writes, finds all that this one has left."""
    file = SharedFile("test", 0)
    first = Engine(file)
    first.add(request_of())
    given = first.run(8)
    before = file.read(1 << 20, 0)
    spare = Engine(file)
    assert file.read(1 << 20, 0) == before
    given += first.run(24)
    spare.add(request_of(given))
    rest = spare.run()
    assert given + rest == expected_tokens(PROMPT, 60, VOCAB_SIZE)
    assert spare.num_computed - (len(rest) - 1) <= 16


def test_a_sequence_without_a_token_finds_what_it_would_have_found() -> None:
    file = SharedFile("test", 0)
    begun(file)
    engine = Engine(file)
    engine.add(request_of())
    assert engine.run() == expected_tokens(PROMPT, 60, VOCAB_SIZE)
    assert engine.events[0].num_cached_tokens == 0


def test_room_goes_from_blocks_that_nobody_holds_to_those_that_are_held() -> None:
    """First come first kept while all are held, since a sequence's later blocks are worth nothing without the first."""
    file = SharedFile("test", 0)
    first = Engine(file, num_kept=7)
    old = replace(request_of(name="old", count=1), prompt_token_ids=PROMPT[::-1])
    first.add(old)
    first.run()
    first.add(request_of())
    given = first.run(50)
    second = Engine(file, num_kept=7)
    second.add(request_of(given))
    rest = second.run()
    assert given + rest == expected_tokens(PROMPT, 60, VOCAB_SIZE)
    assert second.events[0].num_cached_tokens == 7 * 16


def test_contents_of_a_block_are_those_of_all_layers_and_cores() -> None:
    places = tuple(KVPlace(0, slot) for slot in range(3))
    pool = KVPool.allocate([NeuronCore(0), NeuronCore(1)], places, 8, (2 * 64, 2))
    for shard in pool.shards:
        shard.bytes[:] = np.random.default_rng(0).integers(0, 256, shard.bytes.size)
    blocks, before = PoolBlocks(pool), [shard.bytes.copy() for shard in pool.shards]
    assert blocks.num_bytes == 2 * 3 * 2 * 64
    content = blocks.read(5).copy()
    blocks.write(2, content)
    for shard, old in zip(pool.shards, before, strict=True):
        old.reshape(-1, 8, 64)[:, 2] = old.reshape(-1, 8, 64)[:, 5]
        assert (shard.bytes == old).all()
    assert (blocks.read(2) == content).all()


def test_copies_are_made_where_they_are_cheap_or_asked_for() -> None:
    asked = config()
    assert most_kept(asked, 5_000_000, 16 * 3072) == 0
    assert most_kept(asked, 500_000_000, 16 * 6528) == KEPT_BYTES
    assert most_kept(replace(asked, most_kept_bytes=12345), 5_000_000, 16 * 3072) == 12345
    assert most_kept(replace(asked, most_kept_bytes=0), 500_000_000, 16 * 6528) == 0


def test_whoever_shares_no_prefixes_keeps_none() -> None:
    asked = config(most_kept_bytes=1 << 20)
    info, blocks = load_fake(asked, lambda _: None).info, FakeRunner(CACHE, VOCAB_SIZE)
    assert kept_blocks(SharedFile("test", 0), blocks, asked, info, ()) is not None
    alone = replace(info, cache=replace(info.cache, enable_prefix_caching=False))
    assert kept_blocks(SharedFile("test", 0), blocks, asked, alone, ()) is None
    assert kept_blocks(SharedFile("test", 0), None, asked, info, ()) is None
    assert kept_blocks(SharedFile("test", 0), blocks, replace(asked, most_kept_bytes=0), info, ()) is None


def test_a_model_whose_file_was_replaced_is_another_one(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"old")
    before = model_files(str(tmp_path))
    assert before == model_files(str(tmp_path)) != ()
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "new").replace(weights)
    assert model_files(str(tmp_path)) != before
    assert len(model_files(str(weights))) == 1
    assert model_files(str(tmp_path / "none")) == ()
