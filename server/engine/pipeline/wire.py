"""Messages between the stages of an engine, over connections of the standard library, which frame bytes.

The first stage leads. At the start it tells each other stage what to load, and all agree on a number of blocks. Then
each step is one frame to the second stage, which sends it on; the last stage answers the first.
"""

from __future__ import annotations

import queue
import threading
from multiprocessing.connection import Connection
from typing import TypeVar

import msgspec

from ...config import EngineConfig
from ...errors import StartError
from ...link.messages import CoreMemory
from ..load.weights import OnProgress


class Setup(msgspec.Struct, tag=True, frozen=True):
    """Request to load a stage."""

    config: EngineConfig
    number: int  # 1 is the second stage
    weights: str  # identity of the checkpoint of the first stage
    next_address: str | None = None  # of the stage behind on another host; None: connected already, or the last


class Following(msgspec.Struct, tag=True, frozen=True):
    """The first message of the stage before, on a connection between hosts."""


class Loading(msgspec.Struct, tag=True, frozen=True):
    """A line for the user."""

    text: str


class Refused(msgspec.Struct, tag=True, frozen=True):
    """The stage could not start."""

    message: str
    exit_code: int


class Loaded(msgspec.Struct, tag=True, frozen=True):
    """The weights are in memory."""

    num_blocks: int  # of the KV cache, most that this stage can hold
    layout: str  # of its block tables and states, which must be the same in all stages


class UseBlocks(msgspec.Struct, tag=True, frozen=True):
    """Allocate the KV cache."""

    num_blocks: int


class StageReady(msgspec.Struct, tag=True, frozen=True):
    """The stage computes steps from now on."""

    core_ids: tuple[int, ...]
    core_names: tuple[str, ...]
    memory: tuple[CoreMemory, ...]
    host_memory: dict[str, int]
    pid: int


Answer = Loading | Refused | Loaded | StageReady
AnyMessage = TypeVar("AnyMessage", bound=msgspec.Struct)
END = b""  # the last frame
_ANSWERS = msgspec.msgpack.Decoder(Answer)


class StageLost(StartError):
    """A stage has ended, or its connection."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stage {number + 1} of the pipeline has ended, or its connection")


def send(connection: Connection, message: msgspec.Struct) -> None:
    """Send a message of the start."""
    connection.send_bytes(msgspec.msgpack.encode(message))


def receive(connection: Connection, kind: type[AnyMessage]) -> AnyMessage:
    """Wait for a message of this kind. Raises EOFError or OSError at the connection's end."""
    return msgspec.msgpack.decode(connection.recv_bytes(), type=kind)


def answer(connection: Connection, number: int, kind: type[AnyMessage], on_progress: OnProgress) -> AnyMessage:
    """Wait for the answer of stage `number`, passing its lines on.

    Raises StageLost, or StartError with the reason of a stage that could not start.
    """
    while True:
        try:
            message = _ANSWERS.decode(connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise StageLost(number) from error
        if isinstance(message, kind):
            return message
        if isinstance(message, Loading):
            on_progress(f"stage {number + 1}: {message.text}")
        elif isinstance(message, Refused):
            refusal = StartError(f"stage {number + 1} of the pipeline: {message.message}")
            refusal.exit_code = message.exit_code
            raise refusal


class Frames:
    """Steps that arrive at a connection, read by a thread of its own.

    Stages send to each other in a ring: one that computes must not keep the one before from sending.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._arrived: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="stage-frames", daemon=True).start()

    def _read(self) -> None:
        try:
            while data := self._connection.recv_bytes():
                self._arrived.put(data)
        except (EOFError, OSError):
            pass
        self._arrived.put(None)

    def next(self) -> bytes | None:
        """Wait for the next frame; None after an empty one, and at the connection's end."""
        return self._arrived.get()
