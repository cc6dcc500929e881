"""An emulated NeuronCore: its index, and the host memory that stands in for its memory, counted by use.

The memory that the accelerator's own core would use is in the ledger. The two differ in layout, copies and padding.
"""

from __future__ import annotations

from typing import Literal, get_args

from ..host.memory import GIB
from .hbm import ALIGNMENT, Buffer, Hbm
from .layout import round_up

HostUse = Literal["weights", "kv", "activations", "partial_sums", "workers", "tables", "adapters"]
HOST_USES: tuple[HostUse, ...] = get_args(HostUse)

MAPPING_BYTES = GIB  # least size of a mapping; only written pages take memory of the host


class NeuronCore:
    """A core whose memory grows by mappings, since host buffers are not bounded by the accelerator's memory."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.used: dict[HostUse, int] = dict.fromkeys(HOST_USES, 0)
        self._hbm = Hbm(MAPPING_BYTES)

    def allocate(self, use: HostUse, name: str, num_bytes: int) -> Buffer:
        """Allocate zeroed memory, aligned to a cache line. Raises HostMemoryError when the host cannot map it."""
        if num_bytes > self._hbm.free_bytes:
            self._hbm = Hbm(max(num_bytes, MAPPING_BYTES))
        buffer = self._hbm.allocate(num_bytes, f"{use} {name}")
        self.used[use] += round_up(num_bytes, ALIGNMENT)
        return buffer
