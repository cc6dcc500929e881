"""The words the API process and the engine process say to each other: msgspec tagged structs, nothing else.

API -> engine: Add, Abort, ResetPrefixCache, Shutdown. Engine -> API: Progress* Ready Tokens*, or Failed and silence.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from server.engine.inventory import EngineFacts
from server.types import Request, StepReport, TokenEvent


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


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """Abort what is still open, send the last events and end. Draining beforehand is the sender's business."""


Command = Add | Abort | ResetPrefixCache | Shutdown


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


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The engine has ended, or could not start; `exit_code` is what the command should exit with."""

    message: str
    exit_code: int


Output = Progress | Ready | Tokens | Failed
