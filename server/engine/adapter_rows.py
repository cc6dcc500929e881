"""Which rows of a step have an adapter: those of one are a group, so that its weights are read once for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from neuronserve.server.types import ScheduledSeq

Int32 = npt.NDArray[np.int32]


class AdapterRows:
    """The arrays of the step record that say it; `slots` has the slot of each loaded adapter, by its digest."""

    def __init__(self, num_tokens: int, num_seqs: int, slots: Mapping[str, int]) -> None:
        self.rows: Int32 = np.zeros(num_tokens, np.int32)
        self.groups: Int32 = np.zeros((num_seqs, 3), np.int32)
        self._slots = slots

    def fill(self, seqs: Sequence[ScheduledSeq]) -> int:
        """Group the rows of `seqs`, which lie one after the other; returns the number of groups."""
        if not any(seq.lora for seq in seqs):
            return 0
        ranges: dict[int, list[tuple[int, int]]] = {}
        row = 0
        for seq in seqs:
            end = row + len(seq.token_ids)
            if seq.lora:
                ranges.setdefault(self._slots[seq.lora], []).append((row, end))
            row = end
        at = 0
        for group, (slot, pieces) in enumerate(sorted(ranges.items())):
            begin = at
            for first, last in pieces:
                self.rows[at : at + last - first] = np.arange(first, last)
                at += last - first
            self.groups[group] = slot, begin, at
        return len(ranges)
