"""Tiers of real engines: every kind of cache comes back bit by bit, and damaged files on a disk are nothing."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from neuronserve.server.config import CacheConfig, SchedulerConfig
from neuronserve.server.config.offload import OffloadConfig
from neuronserve.server.engine.blob_file import BlobFile
from neuronserve.server.engine.fake_runner import FakeRunner, expected_tokens
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.engine.loop import Runner
from neuronserve.server.engine.offload import Offload, offload, require_tier_directory
from neuronserve.server.engine.pool_blobs import PoolBlobs
from neuronserve.server.errors import SettingsError
from neuronserve.server.host.shared_file import SharedFile
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, SamplingParams
from tests.api.serving import VOCAB_SIZE, load_fake
from tests.depth import thorough
from tests.engine.config import engine_config
from tests.engine.mailbox import run_all
from tests.link.test_client import config
from tests.parity.latent_models import FAMILIES, random_model, save
from tests.tier_stores import press
from tools.random_checkpoint.writer import Options, write_checkpoint

GIB = 1 << 30
PROMPT = tuple(random.Random(1).choices(range(VOCAB_SIZE), k=100))
LIMITS = SchedulerConfig(max_model_len=192, max_num_seqs=8, max_num_batched_tokens=96)


class Server:
    """A cache with tiers and what computes for it."""

    def __init__(self, runner: Runner, cache: CacheConfig, tiers: Offload) -> None:
        self.runner, self.tiers = runner, tiers
        tiers.rate.token_s = 1.0  # a model for which any load is worth it
        self.cache = KVCacheManager(cache, tiers.blocks, tiers.states)

    def answer(self) -> list[int]:
        """Tokens of the prompt, all of whose blocks then leave the device."""
        scheduler = Scheduler(LIMITS, self.cache)
        tokens = run_all(scheduler, self.runner, [Request("a", PROMPT, SamplingParams(24, ignore_eos=True), 0.0)])
        assert scheduler.audit() == []
        for pool in [self.cache.pool, *([] if self.cache.states is None else [self.cache.states.pool])]:
            press(pool, pool.num_free)
            assert not pool.cached
        for store in self.stores:
            if store._writer is not None:
                store._writer.submit(lambda: None).result()
        assert not tokens.errors
        return tokens.tokens["a"]

    @property
    def stores(self) -> list[BlobFile]:
        tiers = [tier for each in (self.tiers.blocks, self.tiers.states) if each for tier in each.tiers]
        return [tier.store for tier in tiers if isinstance(tier.store, BlobFile)]

    def end(self) -> None:
        """Close the files, as the end of a process does."""
        for store in self.stores:
            if store._file is not None:
                store._file.close()

    @property
    def num_loaded(self) -> int:
        return self.cache.num_loaded_tokens


SHAPES = [
    ("tiny-qwen2", "auto"),
    ("tiny-qwen3", "int8"),
    ("deepseek-v3", "auto"),
    ("tiny-llama", "fp8"),
    ("tiny-gemma2", "auto"),
    ("tiny-qwen3-next", "auto"),
]


@pytest.fixture(
    scope="module",
    params=[each if i < 3 else thorough(each) for i, each in enumerate(SHAPES)],
    ids="-".join,
)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kernel_cache: str
) -> Iterator[LoadedEngine]:
    shape, kv_cache_dtype = request.param
    directory = tmp_path_factory.mktemp("tiers") / shape
    if shape in FAMILIES:
        save(random_model(shape), directory)
    else:
        write_checkpoint(shape, directory, Options())
    loaded = load_engine(
        engine_config(directory, kernel_cache, tensor_parallel_size=2, kv_cache_dtype=kv_cache_dtype), lambda _: None
    )
    yield loaded
    loaded.runner.close()


def kinds_of(engine: LoadedEngine) -> tuple[PoolBlobs, PoolBlobs | None]:
    states = engine.placement.buffers.states
    return PoolBlobs.of(engine.placement.kv), None if states is None else PoolBlobs.states(states)


@pytest.mark.parametrize("is_on_disk", [False, True], ids=["memory", "disk"])
def test_every_kind_of_cache_comes_back_bit_by_bit(engine: LoadedEngine, tmp_path: Path, is_on_disk: bool) -> None:
    kinds = kinds_of(engine)
    sizes = OffloadConfig(0, str(tmp_path), GIB, GIB) if is_on_disk else OffloadConfig(GIB)
    tiers = offload(SharedFile("test", 0), kinds, config(offload=sizes, most_kept_bytes=0), engine.info, ())
    server = Server(engine.runner, engine.cache, tiers)
    first = server.answer()
    assert server.num_loaded == 0
    assert server.answer() == first
    assert server.num_loaded == 96
    medium = "STORAGE" if is_on_disk else "CPU"
    report = server.cache.tier_report()
    assert report is not None
    assert report[2][f"{medium}_to_GPU"][0] >= 6 * kinds[0].num_bytes


def test_a_successor_goes_on_bit_by_bit_with_what_is_kept(engine: LoadedEngine) -> None:
    kept, kinds, asked = SharedFile("test", 0), kinds_of(engine), config(most_kept_bytes=GIB)
    first, second = (
        Server(engine.runner, engine.cache, offload(kept, kinds, asked, engine.info, ())) for _ in range(2)
    )
    alone = KVCacheManager(engine.cache)
    request = Request("a", PROMPT, SamplingParams(60, ignore_eos=True), 0.0)
    expected = run_all(Scheduler(LIMITS, alone), engine.runner, [request]).tokens["a"]
    scheduler = Scheduler(LIMITS, first.cache)
    scheduler.add(request)
    given = list[int]()
    while len(given) < 40:
        plan = scheduler.schedule(0.0)
        events = scheduler.apply(plan, engine.runner.execute(plan), 0.0)
        given += [event.token_id for event in events if event.token_id is not None]
    for kind in filter(None, kinds):
        for tensors in kind._tensors:
            tensors[:] = 0  # the memory of the engine that died
    resumed = replace(request, generated_token_ids=tuple(given))
    rest = run_all(Scheduler(LIMITS, second.cache), engine.runner, [resumed])
    assert given + rest.tokens["a"] == expected
    assert second.num_loaded >= 96


@pytest.mark.parametrize("num_prompt", [100, 96], ids=["part", "whole"])
def test_an_engine_goes_on_with_the_blocks_of_another_bit_by_bit(engine: LoadedEngine, num_prompt: int) -> None:
    states = engine.placement.buffers.states
    kinds = PoolBlobs.of(engine.placement.kv), None if states is None else PoolBlobs.states(states)
    files, asked = [SharedFile("test", 0) for _ in range(2)], config(most_kept_bytes=GIB)
    prompt, sampling = PROMPT[:num_prompt], SamplingParams(24, ignore_eos=True)

    def run(request: Request, own: int) -> tuple[list[int], KVCacheManager]:
        tiers = offload(files[own], kinds, asked, engine.info, (), [files[1 - own]])
        cache = KVCacheManager(engine.cache, tiers.blocks, tiers.states)
        scheduler = Scheduler(LIMITS, cache)
        tokens = run_all(scheduler, engine.runner, [request]).tokens[request.request_id]
        assert scheduler.audit() == []
        return tokens, cache

    whole, _ = run(Request("a", prompt, sampling, 0.0), 0)
    for shard in engine.placement.kv.shards:
        shard.bytes[:] = 0x55  # so that only the copies are right
    files[1].clear()
    rest = replace(Request("b", prompt, sampling, 0.0), generated_token_ids=(whole[0],), is_handed_over=True)
    tokens, cache = run(rest, 1)
    assert [whole[0], *tokens] == whole
    # The last snapshot of a state is before the prompt's last token.
    assert cache.num_loaded_tokens == (96 if states is None else (num_prompt - 1) // 16 * 16)
    report = cache.tier_report()
    assert report is not None
    assert report[2]["PEER_to_GPU"][0] >= 5 * kinds[0].num_bytes


CACHE = CacheConfig(num_blocks=24, block_size=16)
INFO = load_fake(config(), lambda _: None).info


def on_disk(directory: Path, memory_bytes: int = 0, files: tuple[tuple[str, int, int, int], ...] = ()) -> Server:
    """A server with the fake model; its tier of memory ends with it, that of the disk does not."""
    runner = FakeRunner(CACHE, VOCAB_SIZE)
    sizes = OffloadConfig(memory_bytes, str(directory), 1 << 20, 1 << 20)
    asked, info = config(offload=sizes, most_kept_bytes=0), replace(INFO, cache=CACHE)
    return Server(runner, CACHE, offload(SharedFile("test", 0), (runner, None), asked, info, files))


EXPECTED = expected_tokens(PROMPT, 24, VOCAB_SIZE)


def left_on(directory: Path) -> Path:
    """The file of a server that has ended, with copies of the prompt's blocks."""
    server = on_disk(directory)
    assert server.answer() == EXPECTED
    server.end()
    (file,) = directory.iterdir()
    return file


def test_a_disk_outlives_the_server(tmp_path: Path) -> None:
    file = left_on(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    server = on_disk(tmp_path)
    assert server.answer() == EXPECTED
    assert server.num_loaded == 96


def test_what_memory_has_no_room_for_goes_to_the_disk(tmp_path: Path) -> None:
    server = on_disk(tmp_path, memory_bytes=1000)
    assert server.answer() == server.answer() == EXPECTED
    assert server.num_loaded == 96
    report = server.cache.tier_report()
    assert report is not None
    assert report[0] == 1
    assert {"GPU_to_CPU", "CPU_to_STORAGE", "CPU_to_GPU", "STORAGE_to_GPU"} == set(report[2])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[100::50] = bytes(byte ^ 4 for byte in content[100::50])
    file.write_bytes(content)


def cut(file: Path) -> None:
    os.truncate(file, 200)


def swap(file: Path) -> None:
    """Put another model's file in its place."""
    (other := file.parent / "other").mkdir()
    server = on_disk(other, files=(("model", 1, 2, 3),))
    server.answer()
    server.end()
    next(other.glob("*")).replace(file)


def link(file: Path) -> None:
    moved = file.rename(file.parent.parent / "elsewhere")
    file.symlink_to(moved)


def open_to_others(file: Path) -> None:
    file.chmod(0o666)


@pytest.mark.parametrize("spoil", [flip, cut, swap, link, open_to_others])
def test_a_file_that_is_not_what_the_server_wrote_is_nothing(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    (directory := tmp_path / "tiers").mkdir()
    spoil(left_on(directory))
    server = on_disk(directory)
    assert server.answer() == EXPECTED
    assert server.num_loaded == 0
    assert server.answer() == EXPECTED


def test_two_engines_have_files_of_their_own(tmp_path: Path) -> None:
    servers = [on_disk(tmp_path), on_disk(tmp_path)]
    assert [server.answer() for server in servers] == [EXPECTED] * 2
    assert len(list(tmp_path.iterdir())) == 2
    assert [server.num_loaded for server in servers] == [0, 0]


def test_files_of_earlier_models_make_room(tmp_path: Path) -> None:
    old = tmp_path / f"{'0' * 32}.0.kvtier"
    old.write_bytes(bytes(2 << 20))
    used = tmp_path / "notes.txt"
    used.write_bytes(bytes(2 << 20))
    left_file = on_disk(tmp_path)
    assert left_file.answer() == EXPECTED
    assert used.exists()
    assert not old.exists()


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="--kv-offloading-dir: cannot make"):
        require_tier_directory(OffloadConfig(directory=str(tmp_path / "file")))
    require_tier_directory(OffloadConfig(directory=str(tmp_path / "new")))
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
