"""A server's engines as its API sees them, whether this process has them or another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from neuronserve.server.link.groups import EngineGroups
from neuronserve.server.link.hub.remote import RemoteEngines
from neuronserve.server.link.journal import OpenSequence
from neuronserve.server.link.messages import Tokens
from neuronserve.server.types import StepReport

AnyEngines = EngineGroups | RemoteEngines


class SeenEngine(Protocol):
    """One engine of either."""

    def observe(self, observer: Callable[[Tokens], None]) -> None:
        """Call `observer` with every turn."""

    @property
    def is_up(self) -> bool:
        """True while the engine answers."""

    @property
    def num_open(self) -> int:
        """Number of open sequences."""

    @property
    def journal(self) -> Iterable[OpenSequence]:
        """Those that this process looks after."""

    @property
    def report(self) -> StepReport | None:
        """After its last turn."""


def seen(engines: AnyEngines) -> Sequence[SeenEngine]:
    """The engines of either, in the order of their ranks."""
    return engines.clients
