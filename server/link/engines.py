"""State of a server's engines, and what observes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..errors import InvalidRequest
from ..types import StepReport
from .journal import OpenSequence
from .messages import EngineInfo, Tokens
from .watchdog import EngineState

RANK_HEADER = "X-data-parallel-rank"  # vLLM's name: the engine that a client or a router chose itself
Observer = Callable[[Tokens], None]


class Engine:
    """State of one engine."""

    journal: Iterable[OpenSequence]  # open sequences that this process supervises

    def __init__(self) -> None:
        self.state: EngineState = "loading"
        self.loss: str | None = None  # why an engine that served has ended for good, unless it was stopped
        self.report: StepReport | None = None  # of its last turn
        self._observers: list[Observer] = []

    @property
    def is_alive(self) -> bool:
        """True while the engine can take requests, now or once it, or its successor, has loaded."""
        return self.state != "dead"

    @property
    def is_up(self) -> bool:
        """True while the engine answers."""
        return self.state == "serving"

    def observe(self, observer: Observer) -> None:
        """Call `observer` with every turn of the engine from now on, before the streams get it. It must be quick."""
        self._observers.append(observer)


class Engines:
    """All engines of a server."""

    clients: Sequence[Engine]  # by rank
    infos: Sequence[EngineInfo] = ()  # of each engine, once it is ready

    @property
    def num_prefill(self) -> int:
        """Number of first engines, which hand requests over after their first token; 0: none does."""
        return self.infos[0].num_prefill if self.infos else 0

    @property
    def is_alive(self) -> bool:
        """True while any engine can take requests, now or once it has loaded."""
        return any(client.is_alive for client in self.clients)

    @property
    def states(self) -> tuple[EngineState, ...]:
        """State of each engine, by rank."""
        return tuple(client.state for client in self.clients)

    @property
    def loss(self) -> str | None:
        """Reasons why engines that served have ended, unless they were stopped; None when there is none."""
        return "; ".join(client.loss for client in self.clients if client.loss is not None) or None

    def check_rank(self, rank: int | None) -> None:
        """Raise InvalidRequest unless there is an engine `rank`; None stands for any."""
        if rank is not None and not 0 <= rank < len(self.clients):
            what = f"{RANK_HEADER} is {rank}: this server has engines 0 to {len(self.clients) - 1}."
            raise InvalidRequest(what, RANK_HEADER)
