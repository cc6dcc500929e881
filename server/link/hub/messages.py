"""Messages between an API process, one of several, and the hub in the process that has the engines.

Worker -> hub: (Submit | Abort | Restart | ResetPrefixCache | ReleaseMemory | Ask | Call | Reply)*, Serving once it
has loaded, and Failed as the last one when it cannot.
Hub -> worker: Opened, then (Turn | Refused | State | Answered | Called | Answers)*.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from neuronserve.server.errors import RequestError, Unavailable
from neuronserve.server.link.messages import Abort, EngineInfo, Failed, ReleaseMemory, ResetPrefixCache, Tokens
from neuronserve.server.link.watchdog import EngineState
from neuronserve.server.types import Request

TRACE = "trace"  # what the hub is asked for a TraceCommand, which its engines answer by one TraceReply each


class Raised(msgspec.Struct, frozen=True):
    """An error, as it is raised again in the other process. It is of a class that both have imported."""

    kind: str  # name of a class
    fields: dict[str, Any]

    @classmethod
    def of(cls, error: RequestError) -> Raised:
        """The message of an error."""
        return cls(type(error).__name__, vars(error))

    @property
    def error(self) -> RequestError:
        """The error as it was raised."""
        kind = next((each for each in _kinds(RequestError) if each.__name__ == self.kind), Unavailable)
        error = kind.__new__(kind, self.fields["message"])
        vars(error).update(self.fields)
        return error


def _kinds(root: type[RequestError]) -> Iterator[type[RequestError]]:
    yield root
    for each in root.__subclasses__():
        yield from _kinds(each)


class Submit(msgspec.Struct, tag=True, frozen=True):
    """Requests that came together, for one engine or any.

    With an `entry` the hub's owner decides whether they are let in, which is answered by an Answered of that number.
    """

    requests: list[Request]
    rank: int | None = None
    entry: bytes | None = None
    number: int | None = None  # None: nobody waits for the answer, and a refusal comes as Refused


class Restart(msgspec.Struct, tag=True, frozen=True):
    """Start each engine anew."""


class Ask(msgspec.Struct, tag=True, frozen=True):
    """Something for the process that has the engines, which is answered by an Answered of the same number."""

    name: str
    body: bytes
    number: int | None = None  # None: nobody waits for the answer


class Call(msgspec.Struct, tag=True, frozen=True):
    """A question to all other processes, which is answered by an Answers of the same number."""

    number: int
    name: str
    body: bytes
    is_for_one: bool = False  # at most one of them has something to say, and the others' answers need not be awaited


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
    raised: Raised


class EngineShown(msgspec.Struct, frozen=True):
    """How one engine is."""

    state: EngineState
    loss: str | None  # why it has ended for good, unless it was stopped
    num_open: int  # sequences, of all workers


class State(msgspec.Struct, tag=True, frozen=True):
    """How the engines are, by rank; sent when that has changed."""

    engines: list[EngineShown]
    num_elsewhere: int  # open sequences of other workers


class Answered(msgspec.Struct, tag=True, frozen=True):
    """What becomes of an Ask, or of a Submit with an entry."""

    number: int
    body: bytes = b""
    raised: Raised | None = None  # instead


class Called(msgspec.Struct, tag=True, frozen=True):
    """Another worker's question, or the hub's own."""

    number: int
    name: str
    body: bytes


class Answers(msgspec.Struct, tag=True, frozen=True):
    """What the other processes say to a Call."""

    number: int
    bodies: list[bytes]


ToHub = Submit | Abort | Restart | ResetPrefixCache | ReleaseMemory | Ask | Call | Reply | Serving | Failed
ToWorker = Opened | Turn | Refused | State | Answered | Called | Answers
