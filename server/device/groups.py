"""Instances that serve one model together: their cores, their memory, and the link between them.

No measurement of a model over several instances was found, so every prediction for a group is extrapolated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import DeviceError
from ..host.memory import GIB
from .chips import GB
from .instances import Instance
from .prices import PriceBasis

GROUP_REASON = "a model over several instances was never measured"


@dataclass(frozen=True, slots=True)
class GroupLink:
    """Link from one instance of a group to the others."""

    kind: Literal["NeuronLink", "EFA"]
    gb_s: float  # all chips or adapters of the instance together, 10**9 bytes/s
    latency_s: float | None  # before the first byte; None: not published

    def seconds(self, num_bytes: int) -> float:
        """Return the seconds of a message between two instances at the peak rate. An unknown latency counts as 0."""
        return (self.latency_s or 0.0) + num_bytes / (self.gb_s * GB)


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """`count` instances of one type, with `link` between them. `instance_group` makes one."""

    instance: Instance
    count: int
    link: GroupLink
    extrapolated: str = GROUP_REASON

    @property
    def name(self) -> str:
        return f"{self.count} x {self.instance.name}"

    @property
    def num_cores(self) -> int:
        """Logical NeuronCores of all instances."""
        return self.count * self.instance.num_cores

    @property
    def host_memory_bytes(self) -> int:
        """Memory of all hosts; one host has `instance.memory_per_host_bytes`."""
        return self.count * self.instance.host_memory_gib * GIB

    def usd(self, basis: PriceBasis) -> float | None:
        """Return dollars an hour for all instances; None when the price is not known in the region."""
        usd = self.instance.usd(basis)
        return None if usd is None else self.count * usd


def instance_group(instance: Instance, count: int) -> InstanceGroup:
    """Return a group of `count` instances, linked by NeuronLink if an UltraServer has groups of that size, else by EFA.

    Raises DeviceError for fewer than two instances, and for instances that have neither link.
    """
    if count < 2:
        raise DeviceError(f"a group of {count} instances of {instance.name}: it must be at least 2")
    return InstanceGroup(instance, count, _link(instance, count))


Place = Instance | InstanceGroup  # hardware of one replica


def part_of(place: Place) -> Instance:
    """Return the instance, or the instance type of a group."""
    return place.instance if isinstance(place, InstanceGroup) else place


def count_of(place: Place) -> int:
    """Return the number of instances of a place."""
    return place.count if isinstance(place, InstanceGroup) else 1


def _link(instance: Instance, count: int) -> GroupLink:
    server = instance.ultraserver
    if server is not None and count in server.sizes:
        return GroupLink("NeuronLink", instance.num_chips * server.link.gib_s_per_chip * GIB / GB, None)
    if instance.efa_gbps is None:
        raise DeviceError(f"{instance.name} has no Elastic Fabric Adapter: {count} of them cannot serve one model")
    latency_s = None if instance.efa_latency_us is None else instance.efa_latency_us * 1e-6
    return GroupLink("EFA", instance.efa_gbps / 8, latency_s)
