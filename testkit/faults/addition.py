"""Fault injection as an addition to a server's API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from neuronserve.server.link.hub.remote import RemoteEngines
from neuronserve.testkit.faults.injector import Draw, FaultInjector
from neuronserve.testkit.faults.rules import Drawn, FaultConfig, Injections

FAULTS = "faults"  # name of the question to the hub; its body is the places of rules
_PLACES = msgspec.msgpack.Decoder(list[int])
_DRAWN: msgspec.msgpack.Decoder[Drawn | None] = msgspec.msgpack.Decoder(Drawn | None)


@dataclass(frozen=True, slots=True)
class FaultInjection:
    """Implements neuronserve.server.api.addition.Addition.

    With several API processes the one that has the engines counts the requests of all: a rule's third request is the
    third of the server.
    """

    config: FaultConfig

    def mount(self, app: Any, service: Any) -> None:
        """Add the middleware."""
        draw = remote_draw(service.engine) if isinstance(service.engine, RemoteEngines) else None
        app.add_middleware(FaultInjector, config=self.config, count=service.telemetry.count_fault, draw=draw)

    def describe(self) -> dict[str, object]:
        """Return the rules in force."""
        return {"faults": self.config.as_json()}

    def offer(self, hub: Any) -> None:
        """Count for the workers of a hub."""
        injections = Injections(self.config.rules, self.config.seed)
        hub.offer(FAULTS, lambda _, body: msgspec.msgpack.encode(injections.draw(_PLACES.decode(body))))


def remote_draw(engines: RemoteEngines) -> Draw:
    """Return `Injections.draw` of the process that has the engines."""

    async def draw(places: Sequence[int]) -> Drawn | None:
        return _DRAWN.decode(await engines.ask(FAULTS, msgspec.msgpack.encode(places)))

    return draw
