"""The second step record: every token of a step as one query of cross attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...host.address_map import ADDRESSES
from ...kernels.records import StepRecord
from ...types import ScheduledSeq

Int32 = npt.NDArray[np.int32]


def num_source_tokens(seq: ScheduledSeq) -> int:
    """Return the positions of the encoder that a sequence's cross attention reads."""
    return sum(item.num_tokens for item in seq.media)


class CrossQueries:
    """An entry for each token, at the last position of its sequence's encoder, which sees all keys."""

    def __init__(self, num_tokens: int) -> None:
        """Allocate for steps of up to `num_tokens`, 0 for a model without cross attention."""
        self.positions: Int32 = np.zeros(num_tokens, np.int32)
        self.seqs: Int32 = np.zeros(num_tokens, np.int32)
        self.rows: Int32 = np.arange(num_tokens, dtype=np.int32)
        self.splits: Int32 = np.tile(np.array([-1, 0, 0], np.int32), (num_tokens, 1))  # no context is divided
        ADDRESSES.register_attributes("cross queries", self)

    def record(self, own: StepRecord) -> StepRecord:
        """Return the record that follows the step's `own`: the same tables, other entries."""
        return own._replace(
            positions=self.positions.ctypes.data,
            tile_seq=self.seqs.ctypes.data,
            tile_row=self.rows.ctypes.data,
            tile_split=self.splits.ctypes.data,
        )

    def fill(self, seqs: Sequence[ScheduledSeq]) -> None:
        """Place the tokens of `seqs`, which lie one after the other."""
        if not len(self.rows):
            return
        counts = [len(seq.token_ids) for seq in seqs]
        last = [max(0, num_source_tokens(seq) - 1) for seq in seqs]
        num_tokens = sum(counts)
        self.positions[:num_tokens] = np.repeat(last, counts)
        self.seqs[:num_tokens] = np.repeat(np.arange(len(seqs)), counts)
