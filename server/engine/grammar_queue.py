"""Queue of requests whose grammar is still being compiled, kept from the scheduler so that no step waits for one."""

from __future__ import annotations

from typing import Protocol

from neuronserve.server.types import Request

POLL_S = 0.002  # between two looks, when there is nothing else to do


class Grammars(Protocol):
    """Interface to the grammars (`grammar_store.py`) that the queue uses."""

    def is_ready(self, text: str) -> bool:
        """True when the grammar can be used; otherwise its compilation has begun."""
        ...

    def forget(self) -> None:
        """Drop what has been compiled."""
        ...


class GrammarQueue:
    """Held requests in the order of their arrival. `grammars` None: none are ever held."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._held: dict[str, Request] = {}

    @property
    def held_ids(self) -> tuple[str, ...]:
        return tuple(self._held)

    def wait_s(self, longest_s: float) -> float:
        """Seconds that an idle loop may wait for commands."""
        return min(longest_s, POLL_S) if self._held else longest_s

    def take(self, request: Request) -> bool:
        """True when `request` may go on at once; otherwise it is held."""
        grammar = request.sampling.grammar
        if self._grammars is None or not grammar or self._grammars.is_ready(grammar):
            return True
        self._held[request.request_id] = request
        return False

    def release(self) -> list[Request]:
        """Remove and return the requests whose grammar has become ready."""
        if self._grammars is None or not self._held:
            return []
        ready = [request for request in self._held.values() if self._grammars.is_ready(request.sampling.grammar)]
        for request in ready:
            del self._held[request.request_id]
        return ready

    def drop(self, request_id: str) -> bool:
        """Remove a held request; True when there was one."""
        return self._held.pop(request_id, None) is not None
