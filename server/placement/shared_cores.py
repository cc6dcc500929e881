"""Ledger of models that share the cores of one instance and the memory of its host. Pure.

A model lies on a group of neighbouring cores, as many as its tensor_parallel_size, beside others that have room there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..device.ledger import Use, account_table
from ..device.visible_cores import core_ranges
from ..errors import DeviceMemoryError
from ..host.memory import GIB


@dataclass(frozen=True, slots=True)
class Account:
    """Memory of one model, and the facts by which it is listed before it is loaded."""

    cores: tuple[Mapping[Use, int], ...]  # bytes by use, of each core of its group
    host_bytes: int  # of all its processes
    num_blocks: int  # of its KV cache; 0: it only encodes
    max_model_len: int
    task: Literal["generate", "embed", "classify"]

    def on(self, rank: int) -> int:
        """Return the bytes on a core, counted from the group's first."""
        return sum(self.cores[rank].values()) if 0 <= rank < len(self.cores) else 0


class SharedCores:
    """Accounts by model, each with the index of its first core."""

    def __init__(self, core_ids: Sequence[int], core_bytes: int, host_bytes: int) -> None:
        """`core_bytes` of each core, and `host_bytes` of the host, may be used."""
        self._core_ids, self._core_bytes, self._host_bytes = tuple(core_ids), core_bytes, host_bytes
        self._held: dict[str, tuple[int, Account]] = {}

    def require(self, name: str, account: Account) -> None:
        """Raise DeviceMemoryError, with the account, for a model that does not fit alone."""
        if not any(self._fits(first, account, tuple(self._held)) for first in self._firsts(account)):
            rows = [(f"core {rank}", uses, self._core_bytes) for rank, uses in enumerate(account.cores)]
            raise DeviceMemoryError(
                f"NRT_RESOURCE (4): {name} does not fit, even alone: it needs {len(rows)} core(s) of "
                f"{len(self._core_ids)}, and {account.host_bytes / GIB:.2f} GiB of the host's "
                f"{self._host_bytes / GIB:.2f} that models may use\n{account_table(rows)}"
            )

    def enter(self, name: str, account: Account, idle: Sequence[str]) -> list[str] | None:
        """Enter a model, in place of as many of the `idle` ones, from the first, as it needs.

        Returns the models that end for it. Returns None, and changes nothing, where others than these are in its way.
        """
        for count in range(len(idle) + 1):
            for first in self._firsts(account):
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
        held = (
            f"{name} holds {account.on(0) / GIB:.2f} GiB on NeuronCore {self.cores_of(name)} and "
            f"{account.host_bytes / GIB:.2f} of the host"
            for name, (_, account) in self._held.items()
        )
        return f"{'; '.join(held)}; budget {self._core_bytes / GIB:.2f} and {self._host_bytes / GIB:.2f}"

    def _firsts(self, account: Account) -> range:
        size = len(account.cores)
        return range(0, len(self._core_ids) - size + 1, size)

    def _fits(self, first: int, account: Account, gone: Sequence[str]) -> bool:
        """Return whether a model fits on the group that begins at `first`, without the models of `gone`."""
        there = [held for name, held in self._held.items() if name not in gone] + [(first, account)]
        return sum(each.host_bytes for _, each in there) <= self._host_bytes and all(
            sum(each.on(index - begin) for begin, each in there) <= self._core_bytes
            for index in range(first, first + len(account.cores))
        )
