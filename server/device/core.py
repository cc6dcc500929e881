"""An emulated NeuronCore: its index, its memory, and the ledger that every byte of it is entered in."""

from __future__ import annotations

from server.device.hbm import ALIGNMENT, Buffer, Hbm
from server.device.layout import round_up
from server.device.ledger import MemoryLedger, Use


class NeuronCore:
    """A core that allocates its memory through the ledger, so that entries and memory always agree."""

    def __init__(self, index: int, ledger: MemoryLedger) -> None:
        self.index = index
        self._ledger = ledger
        self._hbm = Hbm(ledger.capacity_bytes)

    def allocate(self, use: Use, name: str, num_bytes: int) -> Buffer:
        """Zeroed memory aligned to a cache line. Raises DeviceMemoryError, changing nothing, when it does not fit."""
        self._ledger.reserve(self.index, use, name, round_up(num_bytes, ALIGNMENT))
        return self._hbm.allocate(num_bytes, f"{use} {name}")
