"""What an engine's process runs: load, say Ready, serve until Shutdown. Owns the engine's ends of the two sockets."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from neuronserve.server.clock import MonotonicClock
from neuronserve.server.config import CacheConfig, EngineConfig, PoolingLimits, SchedulerConfig
from neuronserve.server.cost.meter import Meter
from neuronserve.server.cost.pricer import Pricer
from neuronserve.server.engine.adapters import AdapterInputs, Adapters
from neuronserve.server.engine.block_map import block_map
from neuronserve.server.engine.grammar_queue import GrammarQueue, Grammars
from neuronserve.server.engine.housekeeping import HousekeepingInputs, release_memory
from neuronserve.server.engine.kept_blocks import BlockBytes, KeptBlocks, RestoringInputs, kept_blocks, model_files
from neuronserve.server.engine.loop import EngineLoop, Runner
from neuronserve.server.engine.loop import Scheduler as AnyScheduler
from neuronserve.server.engine.metered_runner import MeteredOutbox, MeteredRunner, PacedInbox
from neuronserve.server.engine.trace.files import require_directory, traced
from neuronserve.server.engine.watched import WatchedInbox, WatchedRunner, first_token_s
from neuronserve.server.errors import StartError
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.link.frames import Frames
from neuronserve.server.link.handle import EngineEnd
from neuronserve.server.link.heartbeat import Heartbeat, StepLimit
from neuronserve.server.link.messages import (
    BlockMap,
    EngineInfo,
    Failed,
    Housekeeping,
    Input,
    Output,
    Progress,
    ReadBlocks,
    Ready,
    ReleaseMemory,
    Shutdown,
    Tokens,
)
from neuronserve.server.scheduler.pooling import PoolingScheduler
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.scheduler.shared import SharedScheduler

log = logging.getLogger("neuronserve.engine")
LINGER_S = 2.0  # for what the parent has not read at the end


class LoadedEngine(Protocol):
    """What a loader gives back: the model on its device, and the limits that follow from it."""

    @property
    def runner(self) -> Runner: ...
    @property
    def cache(self) -> CacheConfig | None: ...  # None: it generates nothing
    @property
    def scheduler(self) -> SchedulerConfig: ...
    @property
    def pooling(self) -> PoolingLimits | None: ...  # None: it encodes nothing
    @property
    def info(self) -> EngineInfo: ...
    @property
    def grammars(self) -> Grammars | None: ...
    @property
    def pricer(self) -> Pricer: ...
    @property
    def adapters(self) -> Adapters | None: ...
    @property
    def give_back(self) -> Callable[[Sequence[int]], int] | None: ...  # pages of free blocks, to the host
    @property
    def blocks(self) -> BlockBytes | None: ...  # None: nothing is to outlive the engine


# Runs in the engine process, so it must be a module-level function. Raises StartError.
Loader = Callable[[EngineConfig, Callable[[str], None]], LoadedEngine]


class _SocketInputs:
    """All that the API sends, from the socket; while it waits it sees to it that outputs go out."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._decoder = msgspec.msgpack.Decoder(Input)

    def drain(self, timeout_s: float) -> list[Input]:
        if timeout_s > 0:
            self._frames.wait(timeout_s)
        commands = [self._decoder.decode(message) for message in self._frames.read()]
        return [*commands, Shutdown()] if self._frames.has_ended else commands


class _SocketOutbox:
    """Outputs to the socket; the reader merges what it cannot keep up with, so nothing piles up here."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._encoder = msgspec.msgpack.Encoder()

    def put(self, tokens: Tokens) -> None:
        self.send(tokens)

    def send(self, output: Output) -> None:
        self._frames.send(self._encoder.encode(output))


def _schedulers(
    loaded: LoadedEngine, kept: KeptBlocks | None
) -> tuple[AnyScheduler, KVCacheManager | None, Callable[[], BlockMap]]:
    """Of sequences, of texts, or of both; the cache; and what reads whose its blocks are."""
    pooling = None if loaded.pooling is None else PoolingScheduler(loaded.pooling)
    if loaded.cache is None:
        assert pooling is not None
        return pooling, None, BlockMap
    cache = KVCacheManager(loaded.cache, kept)
    generation = Scheduler(loaded.scheduler, cache)
    scheduler = generation if pooling is None else SharedScheduler(generation, pooling)
    return scheduler, cache, lambda: block_map(cache.pool, generation.tables)


def run_engine(loader: Loader, config: EngineConfig, end: EngineEnd) -> int:
    """Load, say Ready, serve until Shutdown. Returns the exit code; every failure is also sent as `Failed`."""
    frames = Frames(end.socket)
    outputs, heartbeat = _SocketOutbox(frames), Heartbeat(end.heartbeat)
    end.heartbeat.close()
    try:
        require_directory(config.trace)
        files = model_files(config.model_path)  # before they are read
        loaded = loader(config, lambda text: outputs.send(Progress(text)))
        gc.freeze()  # what is there stays: no collection needs to walk it
        gc.enable()
        kept = kept_blocks(end.kept, loaded.blocks, config, loaded.info, files)
        scheduler, cache, read_blocks = _schedulers(loaded, kept)
        work: dict[type[Housekeeping], Callable[[], None]] = {
            ReadBlocks: lambda: outputs.send(read_blocks()),
            ReleaseMemory: partial(release_memory, cache, loaded.give_back, loaded.grammars),
        }
        orders = AdapterInputs(HousekeepingInputs(_SocketInputs(frames), work), loaded.adapters, outputs.send)
        inputs = orders if kept is None or cache is None else RestoringInputs(orders, kept, cache)
        with traced(config.trace, loaded, inputs, outputs, outputs.send) as seams:
            outputs.send(Ready(loaded.info))
            clock, gate = MonotonicClock(), GrammarQueue(loaded.grammars)
            meter = Meter()
            is_paced = config.pace == "device"
            runner = MeteredRunner(seams.runner, loaded.pricer, meter, clock, is_paced)
            paced = PacedInbox(seams.inbox, loaded.pricer.request_s if is_paced else 0.0, clock)
            limit = StepLimit(first_token_s(loaded.info.facts.num_params))
            watched = WatchedRunner(runner, heartbeat, limit, clock), WatchedInbox(paced, heartbeat, limit, clock)
            EngineLoop(scheduler, watched[0], clock, watched[1], MeteredOutbox(seams.outbox, meter), gate).run()
    except StartError as error:
        outputs.send(Failed(str(error), error.exit_code))
        return error.exit_code
    except Exception as error:
        log.exception("the engine failed")
        outputs.send(Failed(f"the engine failed: {type(error).__name__}", 1))
        return 1
    finally:
        frames.close(LINGER_S)
    return 0
