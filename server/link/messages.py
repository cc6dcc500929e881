"""Messages between the API process and an engine's process: msgspec tagged structs.

API -> engine: Add, Abort, ResetPrefixCache, StartTrace, StopTrace, LoadAdapter, UnloadAdapter, ReadBlocks,
ReleaseMemory, Shutdown.
Engine -> API: Progress* Ready (Tokens | Cached | TraceReply | AdapterReply | BlockMap)*, and Failed last when it fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Literal

import msgspec

from ..config import CacheConfig
from ..config.formats import Pace, PoolingMode, Quantization, StackName, WeightGroups
from ..device.buckets import CompiledShapes
from ..kv_cache.events import Event
from ..types import Charge, Request, StepReport, TokenEvent


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
    """Facts of an engine that the inventory shows."""

    architecture: str
    num_params: int
    quantization: Quantization | None
    groups: WeightGroups | None  # of 4-bit weights
    modules_to_not_convert: tuple[str, ...]
    weights: WeightsIdentity
    config_sha256: str  # of config.json
    compiled: CompiledShapes
    calibration: str  # version of the cost model's coefficients
    extrapolated: tuple[str, ...]  # why modelled times lack measurements; empty when they have them
    pace: Pace
    stack: StackName = "ideal"  # software that runs on the modelled accelerator


@dataclass(frozen=True, slots=True)
class CoreMemory:
    """Memory of one modelled NeuronCore in bytes, by use."""

    used: dict[str, int]  # by use: weights, kv, scratchpad, collectives, dma_rings, code, runtime
    budget: int  # largest sum that may be used
    capacity: int  # of the core

    @property
    def total(self) -> int:
        """Bytes in use."""
        return sum(self.used.values())


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """A LoRA adapter on the cores."""

    name: str  # model name of its requests
    path: str  # directory on the server's host
    digest: str  # SHA-256 of its files: `Request.lora`
    rank: int  # the largest of its modules


@dataclass(frozen=True, slots=True)
class PoolingFacts:
    """Result of an engine that encodes texts."""

    size: int  # values of a row: dimensions of an embedding, or labels
    max_length: int  # tokens of a text
    pooling: tuple[PoolingMode, ...]
    is_normalized: bool
    labels: tuple[str, ...] = ()  # of a classifier; () = rows are embeddings
    notice: str = ""  # caution about the rows


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Limits and facts of a ready engine, sent once to the API."""

    max_model_len: int  # tokens, prompt and generated
    cache: CacheConfig  # without blocks where the model only encodes
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
    adapters: tuple[LoadedAdapter, ...] = ()  # loaded at the start
    generates: bool = True  # accepts prompts to continue
    pooling: PoolingFacts | None = None  # None: does not encode texts
    threads_alone: int | None = None  # host threads that run a step of one token
    reads_pictures: bool = False  # accepts `Request.media`
    pipeline_parallel_size: int = 1  # stages, each of tensor_parallel_size cores
    num_instances: int = 1  # more where stages are on other hosts
    sound_shape: tuple[int, ...] = ()  # channels and frames of `Request.media`; (): it reads no sound
    num_prefill: int = 0  # first engines of the server, which hand requests over after the first token; 0: none does
    max_source_len: int = 0  # positions of the encoder whose states the decoder attends to; 0: there is none

    @property
    def parallelism(self) -> str:
        """The cores of an engine, as people write it."""
        stages = f", PP={self.pipeline_parallel_size}" if self.pipeline_parallel_size > 1 else ""
        return f"TP={self.tensor_parallel_size}{stages}"

    @property
    def num_cores(self) -> int:
        """Cores of all stages."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def max_prompt_len(self) -> int:
        """Tokens of the longest prompt, which the encoder reads where there is one."""
        return self.max_source_len or self.max_model_len


class Add(msgspec.Struct, tag=True, frozen=True):
    """Start generating for a request. Its id must not belong to an open request."""

    request: Request


class Abort(msgspec.Struct, tag=True, frozen=True):
    """End a request with finish_reason "abort". Unknown and ended ids are ignored."""

    request_id: str


class ResetPrefixCache(msgspec.Struct, tag=True, frozen=True):
    """Empty the prefix cache. Open requests keep their blocks."""


class StartTrace(msgspec.Struct, tag=True, frozen=True):
    """Record every step from now on. Answered by one TraceReply, in the order of the commands."""


class StopTrace(msgspec.Struct, tag=True, frozen=True):
    """Stop recording and write a file. Answered by one TraceReply."""


class LoadAdapter(msgspec.Struct, tag=True, frozen=True):
    """Load the adapter in a directory of the engine's host. Answered by one AdapterReply, in the order of these."""

    path: str


class UnloadAdapter(msgspec.Struct, tag=True, frozen=True):
    """Remove an adapter that no open request uses. Answered by one AdapterReply."""

    digest: str


class ReadBlocks(msgspec.Struct, tag=True, frozen=True):
    """Ask for the owner of each block, read between two steps. Answered by one BlockMap, in the order of these."""


class ReleaseMemory(msgspec.Struct, tag=True, frozen=True):
    """Free memory that is kept only to save work: cached prefixes with the pages of free blocks, grammars."""


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """Abort open requests, send the last events and end."""


Command = Add | Abort | Shutdown  # carried out by the engine loop; the engine's inbox has a handler for each other
TraceCommand = StartTrace | StopTrace
AdapterCommand = LoadAdapter | UnloadAdapter
Input = Command | ResetPrefixCache | TraceCommand | AdapterCommand | ReadBlocks | ReleaseMemory


class Progress(msgspec.Struct, tag=True, frozen=True):
    """One line about the start, for example what is compiled."""

    text: str


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Sent when the engine serves requests."""

    info: EngineInfo


class Tokens(msgspec.Struct, tag=True, frozen=True, dict=True):
    """Events of one turn of the engine loop, and the state after it."""

    events: list[TokenEvent]
    report: StepReport
    charges: list[Charge] = []  # total charges of the request of each event; empty where nothing is modelled

    @cached_property
    def num_generated(self) -> int:
        """Number of events that are tokens; cached because each observer asks."""
        return sum([event.token_id is not None for event in self.events])

    def charged(self) -> Iterator[tuple[TokenEvent, Charge]]:
        """Yield each event with the total charge of its request."""
        return zip(self.events, self.charges or repeat(Charge()), strict=False)


class Cached(msgspec.Struct, tag=True, frozen=True):
    """Events of the prefix cache, if they are logged. Sent before the events of the turn that made them."""

    events: list[Event]


class TraceReply(msgspec.Struct, tag=True, frozen=True):
    """Result of a StartTrace or StopTrace. `file`, for StopTrace, is a path on the engine's host."""

    file: str | None = None
    num_steps: int = 0
    num_events: int = 0
    is_truncated: bool = False  # the limit was reached: the first part is kept
    error: str | None = None  # why the command failed


class AdapterReply(msgspec.Struct, tag=True, frozen=True):
    """Result of a LoadAdapter or UnloadAdapter."""

    digest: str = ""
    rank: int = 0
    error: str | None = None  # why the command failed


class BlockMap(msgspec.Struct, tag=True, frozen=True):
    """Owner of each block of the KV cache, as runs of blocks with the same owner.

    A run is its length and an owner: `FREE`, `CACHED` (free, with a prefix that can be found), `SHARED` (held by
    several sequences), or `FIRST_OWNER` + i for the sequence `owners[i]`. The null block is not included.
    """

    FREE = 0
    CACHED = 1
    SHARED = 2
    FIRST_OWNER = 3

    runs: list[tuple[int, int]] = []
    owners: list[str] = []  # ids of the sequences that hold blocks


class Failed(msgspec.Struct, tag=True, frozen=True):
    """Sent when the engine could not start or failed, with the exit code for the command."""

    message: str
    exit_code: int


Answer = TraceReply | AdapterReply | BlockMap
Output = Progress | Ready | Tokens | Cached | Answer | Failed
