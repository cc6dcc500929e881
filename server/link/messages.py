"""Messages between the API process and an engine's process: msgspec tagged structs.

API -> engine: Add, Abort, ResetPrefixCache, StartTrace, StopTrace, LoadAdapter, UnloadAdapter, ReadBlocks,
ReleaseMemory, Shutdown.
Engine -> API: Progress* Ready (Tokens | TraceReply | AdapterReply | BlockMap)*, and Failed as the last one when the
engine fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Literal

import msgspec

from neuronserve.server.config import CacheConfig
from neuronserve.server.config.formats import Pace, PoolingMode, Quantization, StackName, WeightGroups
from neuronserve.server.device.buckets import CompiledShapes
from neuronserve.server.types import Charge, Request, StepReport, TokenEvent


@dataclass(frozen=True, slots=True)
class WeightsIdentity:
    """Hash that identifies the loaded weights. `of` names what it was computed from.

    `manifest`: an artifact's manifest, which has the hash of every piece, so that it covers every byte.
    `headers and sizes`: a checkpoint's index and, for each safetensors file by name, its name, size and header. This
    distinguishes models, formats and shapes, not two trainings of one shape: reading all data would delay the start.
    """

    sha256: str
    of: Literal["manifest", "headers and sizes"]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts of an engine that an inventory shows."""

    architecture: str
    num_params: int
    quantization: Quantization | None
    groups: WeightGroups | None  # of 4-bit weights
    modules_to_not_convert: tuple[str, ...]
    weights: WeightsIdentity
    config_sha256: str  # of config.json
    compiled: CompiledShapes
    calibration: str  # version of the cost model's coefficients
    extrapolated: tuple[str, ...]  # why modelled times have no measurement behind them; empty when they have
    pace: Pace
    stack: StackName = "ideal"  # software that the modelled part is thought to run


@dataclass(frozen=True, slots=True)
class CoreMemory:
    """Memory of one NeuronCore of the modelled part in bytes, by use."""

    used: dict[str, int]  # by use: weights, kv, scratchpad, collectives, runtime
    budget: int  # largest sum that may be used
    capacity: int  # what the part has


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """An adapter (LoRA) on the cores."""

    name: str  # model name of its requests
    path: str  # directory on the server's host
    digest: str  # SHA-256 of its files: `Request.lora`
    rank: int  # the largest of its modules


@dataclass(frozen=True, slots=True)
class PoolingFacts:
    """What an engine makes of a text that it encodes."""

    size: int  # values of a row: dimensions of an embedding, or labels
    max_length: int  # tokens of a text
    pooling: tuple[PoolingMode, ...]
    is_normalized: bool
    labels: tuple[str, ...] = ()  # of a classifier; () = rows are embeddings
    notice: str = ""  # what a user of the rows should know of them


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Limits and facts of a ready engine, sent once to the API."""

    max_model_len: int  # tokens, prompt and generated
    cache: CacheConfig  # of no blocks where the model only encodes
    max_num_queued_reqs: int  # waiting + running
    device: str
    tensor_parallel_size: int
    dtype: str
    vocab_size: int
    facts: EngineFacts
    core_ids: tuple[int, ...] = ()  # of the group, as the instance numbers them
    kv_cache_dtype: str = "bfloat16"
    core_names: tuple[str, ...] = ()  # as the Neuron runtime names them: ND 0:NC 1
    memory: tuple[CoreMemory, ...] = ()  # one for each core; none where nothing is emulated
    host_memory: dict[str, int] = field(default_factory=dict)  # bytes of the emulation's own buffers, by use
    kernels: dict[str, str] = field(default_factory=dict)  # instruction sets: compiled for, of the main format's matmul
    notes: tuple[str, ...] = ()  # shown once at start
    adapters: tuple[LoadedAdapter, ...] = ()  # that are there from the start
    generates: bool = True  # takes requests to continue a prompt
    pooling: PoolingFacts | None = None  # None: takes none to encode a text
    threads_alone: int | None = None  # host threads that run a step of one token


class Add(msgspec.Struct, tag=True, frozen=True):
    """Generate for this request. Its id must not belong to an open request."""

    request: Request


class Abort(msgspec.Struct, tag=True, frozen=True):
    """End a request with finish_reason "abort". Unknown and ended ids are ignored."""

    request_id: str


class ResetPrefixCache(msgspec.Struct, tag=True, frozen=True):
    """Forget every cached prefix. Open requests keep their blocks."""


class StartTrace(msgspec.Struct, tag=True, frozen=True):
    """Record every step from now on. Answered by one TraceReply, in the order of the commands."""


class StopTrace(msgspec.Struct, tag=True, frozen=True):
    """End the recording and write it to a file. Answered by one TraceReply."""


class LoadAdapter(msgspec.Struct, tag=True, frozen=True):
    """Load the adapter in a directory of the engine's host. Answered by one AdapterReply, in the order of these."""

    path: str


class UnloadAdapter(msgspec.Struct, tag=True, frozen=True):
    """Forget an adapter that no open request has. Answered by one AdapterReply."""

    digest: str


class ReadBlocks(msgspec.Struct, tag=True, frozen=True):
    """Say which block is whose, between two steps. Answered by one BlockMap, in the order of these."""


class ReleaseMemory(msgspec.Struct, tag=True, frozen=True):
    """Give the host back what is kept only to save work: cached prefixes with the pages of free blocks, grammars."""


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """Abort what is still open, send the last events and end. The sender drains beforehand if it means to."""


Command = Add | Abort | Shutdown  # carried out by the engine loop; the engine's inbox has a handler for each other
TraceCommand = StartTrace | StopTrace
AdapterCommand = LoadAdapter | UnloadAdapter
Input = Command | ResetPrefixCache | TraceCommand | AdapterCommand | ReadBlocks | ReleaseMemory


class Progress(msgspec.Struct, tag=True, frozen=True):
    """One line about the start, such as what is being compiled."""

    text: str


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Sent when the engine serves requests."""

    info: EngineInfo


class Tokens(msgspec.Struct, tag=True, frozen=True, dict=True):
    """Events of one turn of the engine loop, and the state after it."""

    events: list[TokenEvent]
    report: StepReport
    charges: list[Charge] = []  # what the request of each event has taken; none where nothing is modelled

    @cached_property
    def num_generated(self) -> int:
        """How many of the events are tokens: each observer of a turn asks."""
        return sum([event.token_id is not None for event in self.events])

    def charged(self) -> Iterator[tuple[TokenEvent, Charge]]:
        """Each event with what its request has taken so far."""
        return zip(self.events, self.charges or repeat(Charge()), strict=False)


class TraceReply(msgspec.Struct, tag=True, frozen=True):
    """Result of a StartTrace or StopTrace. `file`, of the latter, is a path on the engine's host."""

    file: str | None = None
    num_steps: int = 0
    num_events: int = 0
    is_truncated: bool = False  # there was more than the limit allows: the first part is kept
    error: str | None = None  # why the command could not be done


class AdapterReply(msgspec.Struct, tag=True, frozen=True):
    """Result of a LoadAdapter or UnloadAdapter."""

    digest: str = ""
    rank: int = 0
    error: str | None = None  # why the command could not be done


class BlockMap(msgspec.Struct, tag=True, frozen=True):
    """Who holds each block of the KV cache, in runs of blocks that are alike.

    A run is its length and an owner: `FREE`, `CACHED` (free, with a prefix that can be found), `SHARED` (held by
    several sequences), or `FIRST_OWNER` + i for the sequence `owners[i]`. The null block is not among them.
    """

    FREE = 0
    CACHED = 1
    SHARED = 2
    FIRST_OWNER = 3

    runs: list[tuple[int, int]] = []
    owners: list[str] = []  # ids of the sequences that hold blocks


class Failed(msgspec.Struct, tag=True, frozen=True):
    """Sent when the engine could not start or has failed, with the exit code that the command should have."""

    message: str
    exit_code: int


Answer = TraceReply | AdapterReply | BlockMap
Output = Progress | Ready | Tokens | Answer | Failed
