"""Code that an engine's process runs: load, say Ready, serve until Shutdown."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from ..clock import Clock, MonotonicClock
from ..config import CacheConfig, EngineConfig, PoolingLimits, SchedulerConfig
from ..cost.meter import Meter
from ..cost.pricer import Pricer
from ..errors import StartError
from ..kv_cache.events import CacheLog
from ..kv_cache.manager import KVCacheManager
from ..link.frames import Frames
from ..link.handle import EngineEnd
from ..link.heartbeat import Heartbeat, StepLimit
from ..link.messages import (
    BlockMap,
    Cached,
    EngineInfo,
    Failed,
    Input,
    Output,
    Progress,
    ReadBlocks,
    Ready,
    ReleaseMemory,
    ResetPrefixCache,
    Shutdown,
    Tokens,
)
from ..link.send_pace import SendPace
from ..link.stage_ends import StageEnd, connect
from ..scheduler.encodings import EncodingLimits, EncodingScheduler
from ..scheduler.pooling import PoolingScheduler
from ..scheduler.shared import SharedScheduler
from ..scheduler.speculative import scheduler_of
from .adapters import AdapterCommands, Adapters
from .blob_file import BlobBytes
from .housekeeping import block_map, release_memory
from .inbox import Grammars, Handlers, Hold, Inbox, arrival_hold, grammar_hold
from .loop import EngineLoop, Runner
from .loop import Scheduler as AnyScheduler
from .metered_runner import MeteredOutbox, MeteredRunner
from .offload import Offload, model_files, offload, require_hand_over, require_tier_directory
from .pipeline.stage import run_stage
from .trace.files import Traced, require_directory, traced
from .watched import WatchedRunner, first_token_s

log = logging.getLogger("neuronserve.engine")
LINGER_S = 2.0  # for outputs that the parent has not read at the end


@dataclass(frozen=True, slots=True)
class ServedEngine:
    """Result of a loader: the model on its device, and the limits that follow from it."""

    runner: Runner
    scheduler: SchedulerConfig
    info: EngineInfo
    pricer: Pricer
    cache: CacheConfig | None = None  # None: it generates nothing
    pooling: PoolingLimits | None = None  # None: it encodes nothing
    encodings: EncodingLimits | None = None  # None: no request waits for an encoder
    grammars: Grammars | None = None
    adapters: Adapters | None = None
    give_back: Callable[[Sequence[int]], int] | None = None  # returns the pages of free blocks to the host
    copy_block: Callable[[int, int], None] | None = None  # from the first to the second
    blocks: BlobBytes | None = None  # None: nothing of the cache is to outlive the engine
    states: BlobBytes | None = None  # None: no layer keeps a state


# Takes the configuration, a receiver of progress lines, and the connections to other pipeline stages if there are any.
# Runs in the engine process, so it must be a module-level function. Raises StartError.
Loader = Callable[..., ServedEngine]


class _Link:
    """The engine's ends of its socket and heartbeat. Implements inbox.Source and loop.Outbox."""

    def __init__(self, end: EngineEnd, clock: Clock) -> None:
        self._frames, self._clock, self.heartbeat = Frames(end.socket), clock, Heartbeat(end.heartbeat)
        end.heartbeat.close()
        self._decoder = msgspec.msgpack.Decoder(Input)
        self._encoder = msgspec.msgpack.Encoder()
        self._pace = SendPace()
        self.log: CacheLog | None = None  # of the prefix cache, for subscribers

    def drain(self, timeout_s: float) -> list[Input]:
        """Return what the API has sent. While it waits, outputs go out."""
        self._send_log()
        self._expect(timeout_s)
        if timeout_s > 0:
            self._frames.wait(timeout_s)
        messages = [self._decoder.decode(message) for message in self._frames.read()]
        if messages and self._frames.has_unsent:  # the next step may take longer
            self._frames.flush()
        self._expect(0.0)
        return [*messages, Shutdown()] if self._frames.has_ended else messages

    def put(self, tokens: Tokens) -> None:
        self._send_log()
        self.send(tokens, self._pace.waits(tokens))

    def _send_log(self) -> None:
        if self.log is not None and self.log.events:
            self.send(Cached(self.log.events))
            self.log.events.clear()

    def send(self, output: Output, waits: bool = False) -> None:
        """Send an output, with the next one if it `waits`; the reader merges what it cannot keep up with."""
        self._frames.send(self._encoder.encode(output), waits)

    def close(self) -> None:
        self._frames.close(LINGER_S)

    def _expect(self, seconds: float) -> None:
        """Write to the heartbeat that the next step begins within `seconds` and what a busy host may add."""
        self.heartbeat.expect(self._clock.now() + seconds + StepLimit.FLOOR_S)


class _Engine:
    """A loaded engine and the parts of its loop."""

    def __init__(self, loaded: ServedEngine, tiers: Offload, depth: int) -> None:
        """Make the scheduler of sequences, of texts, or of both, and the cache of sequences; `depth` of EngineLoop."""
        self.loaded, self._rate, self._depth = loaded, tiers.rate, depth
        self.cache: KVCacheManager | None = None
        self.read_blocks: Callable[[], BlockMap] = BlockMap
        pooling = None if loaded.pooling is None else PoolingScheduler(loaded.pooling)
        if loaded.cache is None:
            assert pooling is not None
            self.scheduler: AnyScheduler = pooling
            return
        cache = self.cache = KVCacheManager(loaded.cache, tiers.blocks, tiers.states, loaded.copy_block)
        generation = scheduler_of(loaded.scheduler, cache)
        self.read_blocks = lambda: block_map(cache.pool, generation.tables)
        texts = generation if pooling is None else SharedScheduler(generation, pooling)
        policy = loaded.scheduler.policy
        self.scheduler = texts if loaded.encodings is None else EncodingScheduler(texts, loaded.encodings, policy)

    def inbox(self, link: _Link, traced: Traced, request_s: float, clock: Clock) -> Inbox:
        """The table of handlers, and what holds and observes requests; a paced engine holds them `request_s`."""
        loaded, adapters = self.loaded, AdapterCommands(self.loaded.adapters, link.send)
        handlers: Handlers = {
            ResetPrefixCache: lambda _: self.scheduler.reset_prefix_cache(),
            ReadBlocks: lambda _: link.send(self.read_blocks()),
            ReleaseMemory: lambda _: release_memory(self.cache, loaded.give_back, loaded.grammars),
            **adapters.handlers,
            **traced.handlers,
        }
        holds: list[Hold] = [adapters.hold]
        if request_s:
            holds.append(arrival_hold(request_s, clock))
        if loaded.grammars is not None:
            holds.append(grammar_hold(loaded.grammars))
        return Inbox(link, handlers, holds, list(traced.observers), [adapters.poll])

    def loop(self, link: _Link, traced: Traced, is_paced: bool, clock: MonotonicClock) -> EngineLoop:
        loaded, meter = self.loaded, Meter()
        inbox = self.inbox(link, traced, loaded.pricer.request_s if is_paced else 0.0, clock)
        metered = MeteredRunner(traced.runner, loaded.pricer, meter, clock, is_paced, self._depth)
        limit = StepLimit(first_token_s(loaded.info.facts.num_params))
        runner = WatchedRunner(metered, link.heartbeat, limit, clock, self._rate.saw)
        return EngineLoop(self.scheduler, runner, clock, inbox, MeteredOutbox(traced.outbox, meter), self._depth)


def run_engine(loader: Loader, config: EngineConfig, end: EngineEnd | StageEnd) -> int:
    """Load, say Ready, serve until Shutdown. Returns the exit code; every failure is also sent as `Failed`.

    With the end of a pipeline stage behind the first, run that stage.
    """
    if isinstance(end, StageEnd):
        return run_stage(end)
    clock = MonotonicClock()
    link = _Link(end, clock)
    try:
        require_directory(config.trace)
        require_tier_directory(config.offload)
        files = model_files(config.model_path)  # before they are read
        pipeline = config.pipeline
        stages = end.stages or tuple(connect(address, pipeline.key) for address in pipeline.addresses)
        loaded = loader(config, lambda text: link.send(Progress(text)), *((stages,) if stages else ()))
        gc.freeze()  # loaded objects stay: no collection needs to walk them
        gc.enable()
        kinds = loaded.blocks, loaded.states
        tiers = offload(end.kept, kinds, config, loaded.info, files, end.peers)
        require_hand_over(config, tiers)
        engine = _Engine(loaded, tiers, pipeline.size)
        if config.logs_cache and engine.cache is not None:
            link.log = engine.cache.follow()
        with traced(config.trace, loaded, link, link.send) as traces:
            link.send(Ready(replace(loaded.info, num_prefill=config.data_parallel.num_prefill)))
            engine.loop(link, traces, config.pace == "device", clock).run()
    except StartError as error:
        link.send(Failed(str(error), error.exit_code))
        return error.exit_code
    except Exception as error:
        log.exception("the engine failed")
        link.send(Failed(f"the engine failed: {type(error).__name__}", 1))
        return 1
    finally:
        link.close()
    return 0
