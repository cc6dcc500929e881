"""Division of a step's attention into entries that workers take: by query tokens, and long contexts by keys too.

The division changes no result: every context is summed by partitions in one order, whichever worker computes them (see
server/device/attention_layout.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..device.attention_layout import PARTITION
from ..types import ScheduledSeq

_SHARES = 4  # pieces of each worker's work at least


class AttentionEntry(NamedTuple):
    """Work of up to `tile_tokens` query tokens of one sequence."""

    seq: int  # index in the step
    row: int  # of its first query token
    partition: int = -1  # of the keys; -1 is all
    slot: int = 0  # memory for the state of the context's first partition
    num_partitions: int = 0


class AttentionWork:
    """Divides the sequences of a step; there is memory for the states of `num_slots` partitions."""

    def __init__(self, tile_tokens: int, num_slots: int, num_workers: int) -> None:
        self._tile_tokens, self._num_slots, self.num_workers = tile_tokens, num_slots, num_workers
        self._of_single_tokens: dict[int, list[AttentionEntry]] = {}  # by the number of sequences

    def most_entries(self, num_tokens: int, num_seqs: int) -> int:
        """Number of entries of the largest step."""
        return num_seqs + num_tokens // self._tile_tokens + self._num_slots

    def divide(self, seqs: Sequence[ScheduledSeq]) -> list[AttentionEntry]:
        """Entries in the order of the sequences. Only a sequence with one query token has its context divided.

        Steps of single tokens with short contexts, which are most steps, get the same list each time.
        """
        if all(seq.start < PARTITION and len(seq.token_ids) == 1 for seq in seqs):
            if len(seqs) not in self._of_single_tokens:
                self._of_single_tokens[len(seqs)] = [AttentionEntry(b, b) for b in range(len(seqs))]
            return self._of_single_tokens[len(seqs)]
        largest = self._largest_piece(seqs)
        entries: list[AttentionEntry] = []
        row = slots = 0
        for b, seq in enumerate(seqs):
            count, partitions = len(seq.token_ids), seq.start // PARTITION + 1
            if count == 1 and partitions > largest and slots + partitions <= self._num_slots:
                entries += [AttentionEntry(b, row, p, slots, partitions) for p in range(partitions)]
                slots += partitions
            else:
                entries += [AttentionEntry(b, tile) for tile in range(row, row + count, self._tile_tokens)]
            row += count
        return entries

    def _largest_piece(self, seqs: Sequence[ScheduledSeq]) -> float:
        """Partitions of keys, for one tile of queries, above which a piece is too large for one worker."""
        total = sum(-(-len(seq.token_ids) // self._tile_tokens) * (seq.start // PARTITION + 1) for seq in seqs)
        return max(1.0, total / (_SHARES * self.num_workers))
