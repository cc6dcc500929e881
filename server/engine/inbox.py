"""Messages of the API on their way to the engine: one table gives each message to its handler.

The loop gets what is left: requests, aborts and the shutdown. A request may be held back for a while, because its
adapter is being loaded or its grammar compiled, so that no step waits for it; other requests go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Protocol

from ..clock import Clock
from ..link.messages import Abort, Add, Command, Input, Shutdown
from ..types import Request

POLL_S = 0.002  # between two looks at whether something is ready, when there is nothing else to do

Handlers = Mapping[type[Input], Callable[[Any], None]]  # by type of message
Hold = Callable[[Request], float]  # seconds after which to ask again; 0 when the request may go on
Poll = Callable[[], float]  # seconds after which to call again, at the latest
Observer = Callable[[Sequence[Request]], None]  # receives the requests of one drain before they are scheduled


class Source(Protocol):
    """Source of messages."""

    def drain(self, timeout_s: float) -> Sequence[Input]:
        """Return all messages that have come, oldest first; wait up to `timeout_s` seconds for the first."""
        ...


class Inbox:
    """Dispatches messages and holds requests. Implements neuronserve.server.engine.loop.Inbox."""

    def __init__(
        self,
        source: Source,
        handlers: Handlers,
        holds: Sequence[Hold] = (),
        observers: Sequence[Observer] = (),
        polls: Sequence[Poll] = (),
    ) -> None:
        """Hold a request while one of `holds` returns a delay; a hold is called when all earlier ones return 0."""
        self._source, self._handlers = source, handlers
        self._holds, self._observers, self._polls = holds, observers, polls
        self._held: dict[str, Add] = {}  # by request id, oldest first
        self._poll_s = inf

    def drain(self, timeout_s: float) -> list[Command]:
        """Handle what has come; return what the loop can do now. May return nothing before `timeout_s` has passed."""
        messages = self._source.drain(self._wait_s(timeout_s))
        requests = [message.request for message in messages if isinstance(message, Add)]
        if requests:
            for observe in self._observers:
                observe(requests)
        commands: list[Command] = []
        for message in messages:
            handle = self._handlers.get(type(message))
            if handle is not None:
                handle(message)
            else:
                commands += self._sort(message)
        self._poll_s = min([poll() for poll in self._polls], default=inf)
        return commands + self._release()

    def _wait_s(self, timeout_s: float) -> float:
        if timeout_s <= 0:
            return 0.0
        return min(timeout_s, self._poll_s, *(self._hold_s(held.request) for held in self._held.values()))

    def _hold_s(self, request: Request) -> float:
        """Seconds that `request` has to wait at least, or until it is worth looking again."""
        return next((seconds for hold in self._holds if (seconds := hold(request)) > 0), 0.0)

    def _sort(self, message: Input) -> list[Command]:
        """Hold a request, or return it. A held request is returned before its abort, so that it gets an event."""
        match message:
            case Add(request):
                if self._hold_s(request) <= 0:
                    return [message]
                self._held[request.request_id] = message
                return []
            case Abort(request_id):
                held = self._held.pop(request_id, None)
                return [message] if held is None else [held, message]
            case Shutdown():
                ended, self._held = list(self._held.values()), {}
                return [*ended, message]
            case _:
                raise TypeError(f"{type(message).__name__} has no handler")

    def _release(self) -> list[Command]:
        """Remove and return the held requests that may go on."""
        ready = [request_id for request_id, held in self._held.items() if self._hold_s(held.request) <= 0]
        return [self._held.pop(request_id) for request_id in ready]


class Grammars(Protocol):
    """Store of compiled grammars (grammar_store.py), as the inbox and housekeeping use it."""

    def is_ready(self, text: str) -> bool:
        """Return whether the grammar can be used; otherwise its compilation has begun."""
        ...

    def forget(self) -> None:
        """Drop the compiled grammars."""
        ...


def grammar_hold(grammars: Grammars) -> Hold:
    """Hold each request until its grammar is compiled."""

    def hold(request: Request) -> float:
        grammar = request.sampling.grammar
        return POLL_S if grammar and not grammars.is_ready(grammar) else 0.0

    return hold


def arrival_hold(request_s: float, clock: Clock) -> Hold:
    """Hold each request for `request_s` seconds from its receipt, the work of the modelled stack's host on it."""

    def hold(request: Request) -> float:
        return 0.0 if request.received_time is None else request.received_time + request_s - clock.now()

    return hold
