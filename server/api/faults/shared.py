"""Which request a fault is for, with several API processes: the one that has the engines counts them all."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from server.api.faults.injector import Draw
from server.api.faults.rules import Drawn, FaultConfig, Injections
from server.link.hub.hub import Hub
from server.link.hub.remote import RemoteEngines

FAULTS = "faults"  # what the hub is asked, with the places of rules
_PLACES = msgspec.msgpack.Decoder(list[int])
_DRAWN: msgspec.msgpack.Decoder[Drawn | None] = msgspec.msgpack.Decoder(Drawn | None)


def remote_draw(engines: RemoteEngines) -> Draw:
    """Injections.draw, in that process."""

    async def draw(places: Sequence[int]) -> Drawn | None:
        return _DRAWN.decode(await engines.ask(FAULTS, msgspec.msgpack.encode(places)))

    return draw


def draw_for(hub: Hub, config: FaultConfig) -> None:
    """Count for the workers of a hub."""
    injections = Injections(config.rules, config.seed)
    hub.offer(FAULTS, lambda _, body: msgspec.msgpack.encode(injections.draw(_PLACES.decode(body))))
