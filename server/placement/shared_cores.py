"""Ledger of models that share groups of neighbouring cores of one instance, and the memory of its host. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..device.visible_cores import core_ranges
from ..host.memory import GIB


@dataclass(frozen=True, slots=True)
class Account:
    """Memory of one model, and its rows of lists while it is not loaded."""

    cores: tuple[int, ...]  # bytes of each core of its group
    host_bytes: int  # of all its processes
    num_blocks: int  # of its KV cache; 0: it only encodes
    rows: Mapping[str, Sequence[Mapping[str, Any]]]  # by the path of the list

    def on(self, rank: int) -> int:
        """Return the bytes on a core, counted from the group's first."""
        return self.cores[rank] if 0 <= rank < len(self.cores) else 0


class SharedCores:
    """Accounts by model, each with the index of its first core."""

    def __init__(self, core_ids: Sequence[int], core_bytes: int, host_bytes: int) -> None:
        """`core_bytes` of each core, and `host_bytes` of the host, may be used."""
        self._core_ids, self._core_bytes, self._host_bytes = tuple(core_ids), core_bytes, host_bytes
        self._held: dict[str, tuple[int, Account]] = {}

    def enter(self, name: str, account: Account, idle: Sequence[str]) -> list[str] | None:
        """Enter a model in place of `idle` ones, from the first; return which end, or None if others are in its way."""
        if name in self._held:
            return []
        size = len(account.cores)
        for count in range(len(idle) + 1):
            for first in range(0, len(self._core_ids) - size + 1, size):
                gone = list(idle[:count])
                if self._fits(first, account, gone):
                    for each in idle[:count]:  # some may be on other cores
                        less = [other for other in gone if other != each]
                        gone = less if self._fits(first, account, less) else gone
                    self._held = {key: held for key, held in self._held.items() if key not in gone}
                    self._held[name] = first, account
                    return gone
        return None

    def leave(self, name: str) -> None:
        """Remove a model, if it is there."""
        self._held.pop(name, None)

    def cores_of(self, name: str) -> str:
        """Return the ids of a model's cores, as the Neuron runtime's variable lists them."""
        first, account = self._held[name]
        return core_ranges(self._core_ids[first : first + len(account.cores)]).replace(" ", "")

    def report(self) -> str:
        """Return what each model holds, in one line."""
        there = [(f"{name} on NeuronCore {self.cores_of(name)}", each) for name, (_, each) in self._held.items()]
        held = [f"{what}: {each.on(0) / GIB:.2f}, host {each.host_bytes / GIB:.2f}" for what, each in there]
        budget = f"of {self._core_bytes / GIB:.2f} GiB a core, host {self._host_bytes / GIB:.2f}"
        return "; ".join([*held, budget])

    def _fits(self, first: int, account: Account, gone: Sequence[str]) -> bool:
        """Return whether a model fits on the group that begins at `first`, without the models of `gone`."""
        there = [held for name, held in self._held.items() if name not in gone] + [(first, account)]
        return sum(each.host_bytes for _, each in there) <= self._host_bytes and all(
            sum(each.on(index - begin) for begin, each in there) <= self._core_bytes
            for index in range(first, first + len(account.cores))
        )
