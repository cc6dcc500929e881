"""Inventory of a neuronserve server: its emulated instance and price (GET /inventory)."""

from __future__ import annotations

from typing import Annotated

import msgspec


class Device(msgspec.Struct):
    """The emulated instance, and the cores of one engine, which device seconds refer to."""

    instance: str
    num_cores: Annotated[int, msgspec.Meta(ge=1)]
    tensor_parallel_size: Annotated[int, msgspec.Meta(ge=1)]
    num_instances: Annotated[int, msgspec.Meta(ge=1)] = 1


class InstancePrice(msgspec.Struct):
    """Price of an hour of the whole instance."""

    usd_per_hour: Annotated[float, msgspec.Meta(ge=0)] | None  # None: the server knows none
    basis: str
    date: str | None
    source: str


class Inventory(msgspec.Struct):
    """Fields of an inventory that a price needs."""

    device: Device
    price: InstancePrice

    @property
    def share(self) -> float:
        """Share of the instance's cores that one engine has; requests are charged for its time."""
        return self.device.tensor_parallel_size / self.device.num_cores


def read_inventory(body: bytes) -> Inventory | None:
    """Return the inventory in an answer; None if the server is no neuronserve."""
    try:
        return msgspec.json.decode(body, type=Inventory)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
