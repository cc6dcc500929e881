"""What all engines of a server are together, wherever they are: in this process's charge, or behind the hub."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from neuronserve.server.errors import InvalidRequest
from neuronserve.server.link.watchdog import EngineState

RANK_HEADER = "X-data-parallel-rank"  # vLLM's: the engine that a client or a router chose itself


class OneEngine(Protocol):
    """How one of them is."""

    @property
    def state(self) -> EngineState: ...
    @property
    def is_alive(self) -> bool: ...
    @property
    def loss(self) -> str | None: ...  # why it has ended for good, unless it was stopped


class Engines:
    """Over `clients`, in the order of their ranks."""

    clients: Sequence[OneEngine]

    @property
    def is_alive(self) -> bool:
        """True while any engine can take requests, now or once it has loaded."""
        return any(client.is_alive for client in self.clients)

    @property
    def states(self) -> tuple[EngineState, ...]:
        """How each engine is, by rank."""
        return tuple(client.state for client in self.clients)

    @property
    def loss(self) -> str | None:
        """How engines have ended that served and were not stopped; None when there is none."""
        return "; ".join(client.loss for client in self.clients if client.loss is not None) or None

    def check_rank(self, rank: int | None) -> None:
        """Raise InvalidRequest unless there is an engine `rank`; None stands for any."""
        if rank is not None and not 0 <= rank < len(self.clients):
            what = f"{RANK_HEADER} is {rank}: this server has engines 0 to {len(self.clients) - 1}."
            raise InvalidRequest(what, RANK_HEADER)
