"""The account of each NeuronCore's memory by use. It holds entries only; the memory itself is in hbm.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from ..errors import DeviceMemoryError
from ..host.memory import GIB

Use = Literal["weights", "kv", "scratchpad", "collectives", "dma_rings", "code", "runtime"]
USES: tuple[Use, ...] = get_args(Use)

MIB = 1 << 20


class MemoryLedger:
    """Named reservations per core. Conservation: reserved + free = budget on every core, also after a refusal."""

    def __init__(
        self,
        capacity_bytes: int,
        num_cores: int,
        cores_per_chip: int,
        utilization: float = 1.0,
        core_ids: Sequence[int] | None = None,
    ) -> None:
        """`capacity_bytes` is one core's memory; the share `utilization` of it may be reserved.

        `core_ids` are the cores' indices on the instance; by default the first cores.
        """
        self.capacity_bytes, self.num_cores = capacity_bytes, num_cores
        self.budget_bytes = int(capacity_bytes * utilization)
        self._names = [core_name(core, cores_per_chip) for core in core_ids or range(num_cores)]
        self._entries: list[dict[tuple[Use, str], int]] = [{} for _ in range(num_cores)]
        self._totals: list[dict[Use, int]] = [dict.fromkeys(USES, 0) for _ in range(num_cores)]

    def reserve(self, core: int, use: Use, name: str, num_bytes: int) -> None:
        """Add `num_bytes` to the entry `name`. Raises DeviceMemoryError, and adds nothing, if they do not fit."""
        if num_bytes < 0:
            raise ValueError(f"cannot reserve {num_bytes} bytes for {name}")
        if num_bytes > self.free_bytes(core):
            raise DeviceMemoryError(self._refusal(core, use, name, num_bytes))
        self._entries[core][use, name] = self._entries[core].get((use, name), 0) + num_bytes
        self._totals[core][use] += num_bytes

    def reserved_bytes(self, core: int, use: Use | None = None) -> int:
        """Return the bytes reserved on `core`, for one use or for all."""
        totals = self._totals[core]
        return sum(totals.values()) if use is None else totals[use]

    def free_bytes(self, core: int) -> int:
        """Return the bytes left of the budget of `core`."""
        return self.budget_bytes - self.reserved_bytes(core)

    def entries(self, core: int) -> Mapping[tuple[Use, str], int]:
        """Return bytes by (use, name)."""
        return self._entries[core]

    def core_name(self, core: int) -> str:
        """Return the name of `core` in the Neuron runtime's form."""
        return self._names[core]

    def account(self) -> str:
        """Return the account as a table: a line for each core, a column for each use, in MiB."""
        rows = [
            (self.core_name(core), {use: self._totals[core][use] for use in USES}, self.budget_bytes)
            for core in range(self.num_cores)
        ]
        return account_table(rows)

    def _refusal(self, core: int, use: Use, name: str, num_bytes: int) -> str:
        """Return the message in the real runtime's words, so that a search for it finds the same advice."""
        return (
            f"NRT_RESOURCE (4): Failed to allocate {num_bytes / GIB:.3f}GB (usage: {use}, {name}) on "
            f"{self.core_name(core)}: {self.free_bytes(core) / GIB:.3f}GB free of {self.budget_bytes / GIB:.3f}GB\n"
            f"{self.account()}"
        )


def core_name(core_id: int, cores_per_chip: int) -> str:
    """Return the name of a core in the Neuron runtime's form: its device (chip), and its index on it."""
    return f"ND {core_id // cores_per_chip}:NC {core_id % cores_per_chip}"


def account_table(rows: Sequence[tuple[str, Mapping[Use, int], int]]) -> str:
    """Return rows of (core, bytes by use, budget) as text, in MiB. A core over its budget has negative free."""
    head = f"{'core':<12}" + "".join(f"{use:>13}" for use in USES) + f"{'budget':>13}{'free':>13}  (MiB)"
    lines = [head]
    for core, uses, budget in rows:
        free = budget - sum(uses.values())
        numbers = [uses.get(use, 0) for use in USES] + [budget, free]
        lines.append(f"{core:<12}" + "".join(f"{n / MIB:>13,.1f}" for n in numbers))
    return "\n".join(lines)
