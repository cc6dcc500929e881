"""Messages between one of several API processes and the hub in the process that has the engines.

Worker -> hub: (Submit | Abort | Restart | ResetPrefixCache | ReleaseMemory | Ask | Call | Reply)*, Serving once it has
loaded, and Failed last when it cannot load. Hub -> worker: Opened, then (Turn | Refused | State | Answered | Called |
Answers)*.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ...errors import RequestError, Unavailable
from ...types import Request
from ..messages import Abort, EngineInfo, Failed, ReleaseMemory, ResetPrefixCache, Tokens
from ..watchdog import EngineState

TRACE = "trace"  # question to the hub with a TraceCommand; each engine answers with one TraceReply


class Raised(msgspec.Struct, frozen=True):
    """An error that is raised again in the other process. Both processes have imported its class."""

    kind: str  # name of a class
    fields: dict[str, Any]

    @classmethod
    def of(cls, error: RequestError) -> Raised:
        """Return the message of an error."""
        return cls(type(error).__name__, vars(error))

    @property
    def error(self) -> RequestError:
        """The error to raise."""
        kind = next((each for each in _kinds(RequestError) if each.__name__ == self.kind), Unavailable)
        error = kind.__new__(kind, self.fields["message"])
        vars(error).update(self.fields)
        return error


def _kinds(root: type[RequestError]) -> Iterator[type[RequestError]]:
    yield root
    for each in root.__subclasses__():
        yield from _kinds(each)


class Submit(msgspec.Struct, tag=True, frozen=True):
    """Requests that arrived together, for one engine or any.

    With an `entry` the hub's owner decides whether to admit them, and sends an Answered of that number.
    """

    requests: list[Request]
    rank: int | None = None
    entry: bytes | None = None
    number: int | None = None  # None: a refusal arrives as Refused


class Restart(msgspec.Struct, tag=True, frozen=True):
    """Restart each engine."""


class Ask(msgspec.Struct, tag=True, frozen=True):
    """Question to the process that has the engines, answered by an Answered of the same number."""

    name: str
    body: bytes
    number: int | None = None  # None: no answer is wanted


class Call(msgspec.Struct, tag=True, frozen=True):
    """Question to all other processes, answered by an Answers of the same number."""

    number: int
    name: str
    body: bytes
    is_for_one: bool = False  # the first answer that is not empty is enough


class Reply(msgspec.Struct, tag=True, frozen=True):
    """Answer of this process to a Called."""

    number: int
    body: bytes


class Serving(msgspec.Struct, tag=True, frozen=True):
    """Sent when the worker has loaded and answers requests."""


class Opened(msgspec.Struct, tag=True, frozen=True):
    """Sent when the engines are ready."""

    infos: list[EngineInfo]


class Turn(msgspec.Struct, tag=True, frozen=True):
    """Turn of engine `rank`, with the events of this worker."""

    rank: int
    tokens: Tokens


class Refused(msgspec.Struct, tag=True, frozen=True):
    """End of the requests that arrived with this one, by an error."""

    request_id: str
    raised: Raised


class EngineShown(msgspec.Struct, frozen=True):
    """State of one engine."""

    state: EngineState
    loss: str | None  # why it has ended for good, unless it was stopped
    num_open: int  # sequences of all workers


class State(msgspec.Struct, tag=True, frozen=True):
    """States of the engines, by rank; sent after changes."""

    engines: list[EngineShown]
    num_elsewhere: int  # open sequences of other workers


class Answered(msgspec.Struct, tag=True, frozen=True):
    """Answer to an Ask, or to a Submit with an entry."""

    number: int
    body: bytes = b""
    raised: Raised | None = None  # raised in place of the answer


class Called(msgspec.Struct, tag=True, frozen=True):
    """Question of another worker, or of the hub."""

    number: int
    name: str
    body: bytes


class Answers(msgspec.Struct, tag=True, frozen=True):
    """Answers of the other processes to a Call."""

    number: int
    bodies: list[bytes]


ToHub = Submit | Abort | Restart | ResetPrefixCache | ReleaseMemory | Ask | Call | Reply | Serving | Failed
ToWorker = Opened | Turn | Refused | State | Answered | Called | Answers
