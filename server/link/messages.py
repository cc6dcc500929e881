"""The words the API process and the engine process say to each other: msgspec tagged structs, nothing else.

API -> engine: Add, Abort, ResetPrefixCache, StartTrace, StopTrace, Shutdown.
Engine -> API: Progress* Ready (Tokens | TraceReply)*, or Failed and silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Literal

import msgspec

from server.config import Pace, Quantization
from server.device.buckets import CompiledShapes
from server.types import Charge, Request, StepReport, TokenEvent


@dataclass(frozen=True, slots=True)
class WeightsIdentity:
    """`manifest`: of an artifact's manifest, which has the hash of every piece, so it stands for every byte.

    `headers and sizes`: of a checkpoint's index and, for each safetensors file by name, name, size and header. It tells
    models, formats and shapes apart, not two trainings of one shape: reading all data would delay the start.
    """

    sha256: str
    of: Literal["manifest", "headers and sizes"]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The engine's part of an inventory."""

    architecture: str
    num_params: int
    quantization: Quantization | None
    modules_to_not_convert: tuple[str, ...]
    weights: WeightsIdentity
    config_sha256: str  # of config.json
    compiled: CompiledShapes
    calibration: str  # version of the cost model's coefficients
    extrapolated: tuple[str, ...]  # why modelled times have no measurement behind them; empty when they have
    pace: Pace


@dataclass(frozen=True, slots=True)
class CoreMemory:
    """The account of one NeuronCore's memory, in bytes."""

    used: dict[str, int]  # by use: weights, kv, scratchpad, collectives, runtime
    budget: int  # the most that may be used
    capacity: int  # what the part has


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the API must know of a ready engine: its limits, and what it says about itself."""

    max_model_len: int  # tokens, prompt and generated
    num_blocks: int  # of the KV cache, the null block included
    block_size: int  # tokens
    max_num_queued_reqs: int  # waiting + running
    device: str
    tensor_parallel_size: int
    dtype: str
    vocab_size: int
    facts: EngineFacts
    enable_prefix_caching: bool = True
    core_ids: tuple[int, ...] = ()  # of the group, as the instance numbers them
    kv_cache_dtype: str = "bfloat16"
    core_names: tuple[str, ...] = ()  # as the Neuron runtime names them: ND 0:NC 1
    memory: tuple[CoreMemory, ...] = ()  # one for each core; none where nothing is emulated
    notes: tuple[str, ...] = ()  # shown once at start


class Add(msgspec.Struct, tag=True, frozen=True):
    """Generate for this request. Its id must not belong to an open request."""

    request: Request


class Abort(msgspec.Struct, tag=True, frozen=True):
    """End a request with finish_reason "abort". Unknown and ended ids are ignored."""

    request_id: str


class ResetPrefixCache(msgspec.Struct, tag=True, frozen=True):
    """Forget every cached prefix. Open requests keep their blocks and are not disturbed."""


class StartTrace(msgspec.Struct, tag=True, frozen=True):
    """Record every step from now on. Answered by one TraceReply, in the order of the commands."""


class StopTrace(msgspec.Struct, tag=True, frozen=True):
    """End the recording and write it to a file. Answered by one TraceReply."""


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """Abort what is still open, send the last events and end. Draining beforehand is the sender's business."""


Command = Add | Abort | ResetPrefixCache | Shutdown  # what the engine loop carries out
TraceCommand = StartTrace | StopTrace  # what stands before it carries out
Input = Command | TraceCommand


class Progress(msgspec.Struct, tag=True, frozen=True):
    """One line about the start, such as what is being compiled."""

    text: str


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The engine serves from now on."""

    info: EngineInfo


class Tokens(msgspec.Struct, tag=True, frozen=True):
    """The events of one turn, and the state after it."""

    events: list[TokenEvent]
    report: StepReport
    charges: list[Charge] = []  # what the request of each event has taken; none where nothing is modelled

    def charged(self) -> Iterator[tuple[TokenEvent, Charge]]:
        """Each event with what its request has taken so far."""
        return zip(self.events, self.charges or repeat(Charge()), strict=False)


class TraceReply(msgspec.Struct, tag=True, frozen=True):
    """What came of a StartTrace or StopTrace; `file` of the latter, which is on the engine's host."""

    file: str | None = None
    num_steps: int = 0
    num_events: int = 0
    is_truncated: bool = False  # there was more than the limit allows: the first part is kept
    error: str | None = None  # it could not be done, and why


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The engine has ended, or could not start; `exit_code` is what the command should exit with."""

    message: str
    exit_code: int


Output = Progress | Ready | Tokens | TraceReply | Failed
