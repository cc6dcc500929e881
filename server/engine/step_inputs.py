"""The arrays of one step, in memory that the kernels read: filled from a plan, one after the other, by one thread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from server.device.address_map import ADDRESSES
from server.engine.attention_work import AttentionWork
from server.kernels.attention.items import COUNTER_BYTES
from server.kernels.records import STEP, WORD, StepRecord
from server.types import ScheduledSeq

Int32 = npt.NDArray[np.int32]


class StepInputs:
    """T tokens of B sequences, S of them sampled; see StepRecord for the fields."""

    def __init__(self, num_tokens: int, num_seqs: int, table_width: int, block_size: int, work: AttentionWork) -> None:
        """Room for the largest step. `table_width` is in blocks."""
        self._block_size, self._work = block_size, work
        num_tiles = work.most_entries(num_tokens, num_seqs)
        self.token_ids: Int32 = np.zeros(num_tokens, np.int32)
        self.positions: Int32 = np.zeros(num_tokens, np.int32)
        self.slots: Int32 = np.zeros(num_tokens, np.int32)
        self.sample_rows: Int32 = np.zeros(num_tokens, np.int32)
        self.query_start: Int32 = np.zeros(num_seqs + 1, np.int32)
        self.block_tables: Int32 = np.zeros((num_seqs, table_width), np.int32)
        self.tile_seq: Int32 = np.zeros(num_tiles, np.int32)
        self.tile_row: Int32 = np.zeros(num_tiles, np.int32)
        self.tile_split: Int32 = np.zeros((num_tiles, 3), np.int32)
        self._counters: npt.NDArray[np.int64] = np.zeros(work.num_workers * COUNTER_BYTES // WORD, np.int64)
        self._record: npt.NDArray[np.int64] = np.array(self._addresses(), np.int64)
        ADDRESSES.register_attributes("step", self)

    def _addresses(self) -> StepRecord:
        return StepRecord(
            num_tokens=0,
            num_seqs=0,
            num_samples=0,
            num_tiles=0,
            token_ids=self.token_ids.ctypes.data,
            positions=self.positions.ctypes.data,
            slots=self.slots.ctypes.data,
            sample_rows=self.sample_rows.ctypes.data,
            query_start=self.query_start.ctypes.data,
            block_tables=self.block_tables.ctypes.data,
            table_width=self.block_tables.shape[1],
            tile_seq=self.tile_seq.ctypes.data,
            tile_row=self.tile_row.ctypes.data,
            tile_split=self.tile_split.ctypes.data,
            counters=self._counters.ctypes.data,
        )

    @property
    def address(self) -> int:
        """Address of the step record."""
        return int(self._record.ctypes.data)

    def _set(self, offset: int, value: int) -> None:
        self._record[offset // WORD] = value

    def fill(self, seqs: Sequence[ScheduledSeq]) -> None:
        """Lay out `seqs` one after the other, each one's last token sampled where it needs a sample."""
        row = samples = 0
        for b, seq in enumerate(seqs):
            end = row + len(seq.token_ids)
            self._place(b, seq, row, end)
            if seq.needs_sample:
                self.sample_rows[samples] = end - 1
                samples += 1
            row = end
            self.query_start[b + 1] = row
        entries = self._work.divide(seqs)
        table = np.array(entries, np.int32)
        self.tile_seq[: len(table)], self.tile_row[: len(table)] = table[:, 0], table[:, 1]
        self.tile_split[: len(table)] = table[:, 2:]
        self._set(STEP.num_tokens, row)
        self._set(STEP.num_seqs, len(seqs))
        self._set(STEP.num_samples, samples)
        self._set(STEP.num_tiles, len(entries))

    def _place(self, b: int, seq: ScheduledSeq, row: int, end: int) -> None:
        """Tokens, positions, block table and slots of one sequence."""
        size, start = self._block_size, seq.start
        num_blocks = (start + end - row - 1) // size + 1
        table = seq.block_table
        self.block_tables[b, :num_blocks] = table if len(table) == num_blocks else table[:num_blocks]
        if end - row == 1:
            self.token_ids[row] = seq.token_ids[0]
            self.positions[row] = start
            self.slots[row] = table[start // size] * size + start % size
            return
        positions = np.arange(start, start + end - row, dtype=np.int32)
        self.token_ids[row:end] = seq.token_ids
        self.positions[row:end] = positions
        self.slots[row:end] = self.block_tables[b, positions // size] * size + positions % size

    def sample_all(self) -> None:
        """Ask for the logits of every row of the step just filled."""
        num_tokens = int(self._record[STEP.num_tokens // WORD])
        self.sample_rows[:num_tokens] = np.arange(num_tokens)
        self._set(STEP.num_samples, num_tokens)
