"""Time of a prefix from host memory and from a disk, beside computing it: `python -m benchmarks.kv_tiers`.

A random checkpoint is served in this process, without HTTP. A prompt is computed and leaves the device for memory,
where the same prompt finds it; then it leaves the device for a disk, whose pages the host drops, and is found there.
Prints seconds to the first token, and ratios. Fails where a goal is missed.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from benchmarks.records import BenchmarkError
from neuronserve.server.clock import MonotonicClock
from neuronserve.server.config import EngineConfig, SchedulerConfig
from neuronserve.server.config.offload import OffloadConfig
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.engine.offload import offload
from neuronserve.server.engine.pool_blobs import PoolBlobs
from neuronserve.server.host.memory import GIB
from neuronserve.server.host.shared_file import SharedFile
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.kv_cache.tiers import PrefillRate
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, SamplingParams
from tools.random_checkpoint.writer import Options, write_checkpoint

BLOCK, CHUNK, SUFFIX = 32, 512, 32  # tokens
_CLOCK = MonotonicClock()
GOALS = {"from memory": 10.0, "from a disk": 3.0}  # times faster than computing
MOST_SLOWER = 1.02  # of computing while as many blocks leave the device, beside computing alone


@dataclass(slots=True)
class Bench:
    """One loaded model; each run has a cache of its own."""

    engine: LoadedEngine
    config: EngineConfig
    prompt: Sequence[int]
    rate: PrefillRate = field(default_factory=PrefillRate)  # of the tiers in use

    def cache(self, tiers: OffloadConfig) -> KVCacheManager:
        """Return an empty cache with tiers."""
        config = replace(self.config, offload=tiers, most_kept_bytes=0)
        placement = self.engine.placement
        made = offload(SharedFile("bench", 0), (PoolBlobs.of(placement.kv), None), config, self.engine.info, ())
        self.rate = made.rate
        return KVCacheManager(self.engine.cache, made.blocks)

    def first_token_s(self, cache: KVCacheManager) -> float:
        """Return the seconds from adding the prompt to its token."""
        limits = SchedulerConfig(len(self.prompt) + SUFFIX, 1, CHUNK)
        scheduler = Scheduler(limits, cache)
        begin = _CLOCK.now()
        scheduler.add(Request("a", tuple(self.prompt), SamplingParams(max_tokens=1), 0.0))
        while scheduler.has_work:
            start = _CLOCK.now()
            plan = scheduler.schedule(start)
            result = self.engine.runner.submit(plan)()
            now = _CLOCK.now()
            self.rate.saw(sum(len(seq.token_ids) for seq in plan.prefill), now - start)
            scheduler.apply(plan, result, now)
        return _CLOCK.now() - begin


def _loaded(directory: Path, kernels: Path, shape: str, num_tokens: int) -> Bench:
    write_checkpoint(shape, directory / "model", Options())
    blocks = -(-(num_tokens + 2 * SUFFIX) // BLOCK) + 2
    config = EngineConfig(
        model_path=str(directory / "model"),
        device="inf2.xlarge",
        tensor_parallel_size=1,
        dtype="bfloat16",
        max_model_len=num_tokens + 2 * SUFFIX,
        max_num_seqs=1,
        max_num_batched_tokens=CHUNK,
        max_num_queued_reqs=8,
        block_size=BLOCK,
        enable_prefix_caching=True,
        device_memory_utilization=0.9,
        num_blocks_override=blocks,
        cpu_threads=os.cpu_count() or 1,
        kernel_cache_dir=str(kernels),
    )
    prompt = random.Random(1).choices(range(1000), k=num_tokens + SUFFIX)
    return Bench(load_engine(config, lambda line: print(line, file=sys.stderr)), config, prompt)


def _drop_pages(directory: Path) -> None:
    """Make the next read of the files in `directory` come from the disk."""
    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        if sys.platform == "linux":
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _measure(bench: Bench, directory: Path) -> dict[str, float]:
    cache = bench.cache(OffloadConfig(4 * GIB))
    seconds = {"computed": bench.first_token_s(cache)}
    begin = _CLOCK.now()
    for block in [*cache.pool.free_blocks()]:
        cache.pool.evict(block)
    seconds["copied to memory"] = _CLOCK.now() - begin
    seconds["from memory"] = bench.first_token_s(cache)
    on_disk = bench.cache(OffloadConfig(0, str(directory), 4 * GIB, 4 * GIB))
    chain, tiers = cache.open("").chain, on_disk.pool.tiers
    num_blocks = len(bench.prompt) // BLOCK
    chain.extend(bench.prompt, num_blocks)
    assert tiers is not None
    for blob in (chain.blob(bench.prompt, i) for i in range(num_blocks)):
        while not tiers.seconds(blob.name) < inf:  # its thread may have too much to write
            tiers.leave(blob, cache.pool.cached[blob.name])
            time.sleep(0.001)
    time.sleep(1.0)
    _drop_pages(directory)
    seconds["from a disk"] = bench.first_token_s(on_disk)
    for each in (cache, on_disk):
        if each.num_loaded_tokens < num_blocks * BLOCK - SUFFIX:
            raise BenchmarkError(f"only {each.num_loaded_tokens} tokens were loaded")
    return seconds


def main(arguments: list[str]) -> int:
    """Return 0 if all goals are reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kv_tiers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default="qwen-0.5b", help="of tools.random_checkpoint")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of the prefix")
    parser.add_argument("--directory", help="on the disk that is measured (default: for temporary files)")
    parser.add_argument("--kernel-cache", type=Path, default=Path(tempfile.gettempdir(), "neuronserve-kernels"))
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=asked.directory) as scratch:
        bench = _loaded(Path(scratch), asked.kernel_cache, asked.shape, asked.tokens)
        (tiers := Path(scratch, "tiers")).mkdir(0o700)
        seconds = _measure(bench, tiers)
        bench.engine.runner.close()
    computed = seconds["computed"]
    for name, value in seconds.items():
        print(f"{name:20} {value:8.3f} s, {computed / value:8.1f} times as fast as computed")
    slower = (computed + seconds["copied to memory"]) / computed
    print(f"computing while as many blocks leave the device takes {slower:.4f} times as long")
    is_fast = all(computed / seconds[name] >= goal for name, goal in GOALS.items())
    return 0 if is_fast and slower <= MOST_SLOWER else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
