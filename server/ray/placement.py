"""CPUs and memory of a replica, and whether the nodes of a cluster have room for them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import StartError
from ..host.memory import GIB
from ..settings.serve import ServeSettings

PROCESSES_BYTES = GIB  # of a server's processes beside the emulated accelerator's memory
WEIGHTS = frozenset({".safetensors", ".gguf"})
OTHERS_SHARE = 4  # buffers and the least KV cache take less than the weights divided by this


class CannotPlace(StartError):
    """The nodes of a cluster have no room for the replicas. The message holds the account."""


@dataclass(frozen=True, slots=True)
class Room:
    """CPUs and bytes of memory: what a node has, or what a replica needs."""

    num_cpus: int
    num_bytes: int
    node: str = ""

    def __str__(self) -> str:
        return f"{self.num_cpus} CPUs and {self.num_bytes / GIB:.1f} GiB"

    @property
    def bundle(self) -> dict[str, float]:
        """Resources in Ray's form."""
        return {"CPU": self.num_cpus, "memory": self.num_bytes}

    def count_of(self, need: Room) -> int:
        """Return how many replicas there is room for."""
        return min(self.num_cpus // need.num_cpus, self.num_bytes // need.num_bytes)


def room_of(settings: ServeSettings, model: Path, nodes: Sequence[Room], count: int | None) -> Room:
    """Return what one of `count` replicas needs; None stands for one on each node."""
    num_bytes = settings.memory_bytes or _least_bytes(settings, model)
    if settings.cpu_threads != "auto":
        return Room(settings.cpu_threads, num_bytes)
    most = max((each.num_cpus for each in nodes), default=1)
    wanted = count or sum(each.num_cpus > 0 for each in nodes)
    fitting = (n for n in range(most, 1, -1) if sum(each.num_cpus // n for each in nodes) >= wanted)
    return Room(next(fitting, 1), num_bytes)


def require_room(need: Room, count: int, nodes: Sequence[Room]) -> int:
    """Return how many replicas the nodes have room for. Raises CannotPlace for fewer than `count`."""
    if (most := sum(each.count_of(need) for each in nodes)) < count:
        have = "; ".join(f"{each.node} has {each}" for each in nodes) or "there is no node"
        raise CannotPlace(
            f"each of {count} replicas needs {need}, and the cluster has room for {most} ({have}): lower "
            "--num-replicas, --cpu-threads or --host-memory-gib, or add nodes"
        )
    return most


def _least_bytes(settings: ServeSettings, model: Path) -> int:
    """Return an estimate by the files of weights; the server has the exact account when it starts."""
    weights = sum(file.stat().st_size for file in model.glob("*") if file.suffix in WEIGHTS)
    return settings.data_parallel_size * (weights + weights // OTHERS_SHARE) + PROCESSES_BYTES
