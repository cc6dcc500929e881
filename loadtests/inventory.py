"""What a neuronserve server says of the instance that it stands for and of its price (GET /inventory)."""

from __future__ import annotations

from typing import Annotated

import msgspec


class Device(msgspec.Struct):
    """The emulated instance, and the cores whose time a request's device seconds are."""

    instance: str
    num_cores: Annotated[int, msgspec.Meta(ge=1)]
    tensor_parallel_size: Annotated[int, msgspec.Meta(ge=1)]


class InstancePrice(msgspec.Struct):
    """Price of an hour of the whole instance."""

    usd_per_hour: Annotated[float, msgspec.Meta(ge=0)] | None  # None: the server knows none
    basis: str
    date: str | None
    source: str


class Inventory(msgspec.Struct):
    """The part of an inventory that a price is made of."""

    device: Device
    price: InstancePrice

    @property
    def share(self) -> float:
        """Share of the instance that one engine's cores are, whose time requests are charged."""
        return self.device.tensor_parallel_size / self.device.num_cores


def read_inventory(body: bytes) -> Inventory | None:
    """The inventory in an answer; None when it is that of no neuronserve server."""
    try:
        return msgspec.json.decode(body, type=Inventory)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
