"""Messages between an API process, one of several, and the hub in the process that has the engines.

Worker -> hub: (Submit | Abort | Restart | ResetPrefixCache | ReleaseMemory | Order | Call | Reply)*, Serving once it
has loaded, and Failed as the last one when it cannot.
Hub -> worker: Opened, then (Turn | Refused | State | Ordered | Called | Answers)*.
"""

from __future__ import annotations

import msgspec

from server.errors import EngineDead, PoisonRequest, QueueFull, RequestError, Unavailable
from server.link.messages import (
    Abort,
    AdapterCommand,
    AdapterReply,
    EngineInfo,
    Failed,
    ReleaseMemory,
    ResetPrefixCache,
    Tokens,
    TraceCommand,
    TraceReply,
)
from server.link.watchdog import EngineState
from server.types import Request

REFUSALS: dict[str, type[RequestError]] = {each.__name__: each for each in (EngineDead, PoisonRequest, QueueFull)}


class Submit(msgspec.Struct, tag=True, frozen=True):
    """Requests that came together, for one engine or any."""

    requests: list[Request]
    rank: int | None = None


class Restart(msgspec.Struct, tag=True, frozen=True):
    """Start each engine anew."""


class Order(msgspec.Struct, tag=True, frozen=True):
    """A command to all engines, which is answered by an Ordered of the same number."""

    number: int
    command: TraceCommand | AdapterCommand


class Call(msgspec.Struct, tag=True, frozen=True):
    """A question to all other processes, which is answered by an Answers of the same number."""

    number: int
    name: str
    body: bytes


class Reply(msgspec.Struct, tag=True, frozen=True):
    """What this process says to a Called."""

    number: int
    body: bytes


class Serving(msgspec.Struct, tag=True, frozen=True):
    """The worker has loaded, and answers requests."""


class Opened(msgspec.Struct, tag=True, frozen=True):
    """The engines are ready."""

    infos: list[EngineInfo]


class Turn(msgspec.Struct, tag=True, frozen=True):
    """A turn of engine `rank`, with those of its events that are this worker's."""

    rank: int
    tokens: Tokens


class Refused(msgspec.Struct, tag=True, frozen=True):
    """The requests that came with this one end with an error."""

    request_id: str
    kind: str  # name of an error, one of REFUSALS
    message: str

    @classmethod
    def by(cls, request_id: str, error: RequestError) -> Refused:
        """The message of an error."""
        return cls(request_id, type(error).__name__, error.message)

    @property
    def error(self) -> RequestError:
        """The error as it was raised in the other process."""
        return REFUSALS.get(self.kind, Unavailable)(self.message)


class EngineShown(msgspec.Struct, frozen=True):
    """How one engine is."""

    state: EngineState
    loss: str | None  # why it has ended for good, unless it was stopped
    num_open: int  # sequences, of all workers


class State(msgspec.Struct, tag=True, frozen=True):
    """How the engines are, by rank; sent when that has changed."""

    engines: list[EngineShown]
    num_elsewhere: int  # open sequences of other workers


class Ordered(msgspec.Struct, tag=True, frozen=True):
    """The engines' replies to an Order."""

    number: int
    replies: list[TraceReply | AdapterReply]
    error: str | None = None  # why there are none: the engines have ended


class Called(msgspec.Struct, tag=True, frozen=True):
    """Another worker's question, or the hub's own."""

    number: int
    name: str
    body: bytes


class Answers(msgspec.Struct, tag=True, frozen=True):
    """What the other processes say to a Call."""

    number: int
    bodies: list[bytes]


ToHub = Submit | Abort | Restart | ResetPrefixCache | ReleaseMemory | Order | Call | Reply | Serving | Failed
ToWorker = Opened | Turn | Refused | State | Ordered | Called | Answers
