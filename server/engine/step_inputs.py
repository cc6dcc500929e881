"""Input arrays of one step in memory that the kernels read, filled from a plan by one thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..config import AttentionSpan, CacheConfig
from ..device.attention_layout import PARTITION
from ..errors import StepTooLarge
from ..host.address_map import ADDRESSES
from ..host.row_shares import MOST_ROW_SHARES
from ..kernels.attention.items import COUNTER_BYTES
from ..kernels.records import STEP, STEP_BYTES, WORD, StepRecord
from ..kv_cache.state_slots import states_after
from ..types import ScheduledSeq
from .attention_work import AttentionEntry, AttentionWork
from .cross.queries import CrossQueries, num_source_tokens

Int32 = npt.NDArray[np.int32]


class PictureRows(Protocol):
    """Finds the vectors and rotations of tokens of pictures."""

    def fill(self, seqs: Sequence[ScheduledSeq], vectors: npt.NDArray[np.int64], rope_rows: Int32) -> bool:
        """Fill in the address of each token's vector, 0 for none, and the row of the rotary tables.

        Returns False, having changed nothing, when no sequence has pictures.
        """
        ...

    def fill_ends(self, seqs: Sequence[ScheduledSeq], ends: Int32) -> bool:
        """Fill in the end of the keys that each token sees; return whether any token sees keys behind it."""
        ...


class StepInputs:
    """Inputs of T tokens of B sequences, S of them sampled; StepRecord describes the fields."""

    def __init__(
        self,
        num_tokens: int,
        num_seqs: int,
        max_model_len: int,
        cache: CacheConfig,
        work: AttentionWork,
        slots: Mapping[str, int] | None = None,
    ) -> None:
        """Allocate for the largest step: `num_tokens` of `num_seqs` sequences, none beyond `max_model_len` tokens.

        `slots` are the slots of the loaded adapters, by digest.
        """
        self._adapters = AdapterRows(num_tokens, num_seqs, {} if slots is None else slots)
        self.lora_rows, self.lora_groups = self._adapters.rows, self._adapters.groups
        self._max_model_len, self._block_size, self._work = max_model_len, cache.block_size, work
        self._groups, self._has_source = tuple(enumerate(cache.groups)), cache.max_source_len > 0
        num_groups = len(cache.groups) + self._has_source  # the last one is cross attention's
        table_width = -(-max(max_model_len, cache.max_source_len) // cache.block_size)
        num_tiles, counters = work.most_entries(num_tokens, num_seqs), max(work.num_workers, MOST_ROW_SHARES)
        self.token_ids: Int32 = np.zeros(num_tokens, np.int32)
        self.positions: Int32 = np.zeros(num_tokens, np.int32)
        self.rope_rows: Int32 = np.zeros(num_tokens, np.int32)
        self.vectors: npt.NDArray[np.int64] = np.zeros(num_tokens, np.int64)
        self.ends: Int32 = np.zeros(num_tokens, np.int32)
        self.pictures: PictureRows | None = None  # None: no sequence has any
        self.slots: Int32 = np.zeros((num_groups, num_tokens), np.int32)
        self.token_types: Int32 = np.zeros(num_tokens, np.int32)
        self.sample_rows: Int32 = np.zeros(num_tokens, np.int32)
        self._num_states = cache.num_states
        self.state_read: Int32 = np.zeros(num_seqs, np.int32)
        self.state_write: Int32 = np.zeros(num_tokens, np.int32)
        self.query_start: Int32 = np.zeros(num_seqs + 1, np.int32)
        self.block_tables: Int32 = np.zeros((num_groups, num_seqs, table_width), np.int32)
        self._placed: list[list[tuple[Sequence[int], int]]] = [[((), 0)] * num_seqs for _ in range(num_groups)]
        self.tile_seq: Int32 = np.zeros(num_tiles, np.int32)
        self.tile_row: Int32 = np.zeros(num_tiles, np.int32)
        self.tile_split: Int32 = np.zeros((num_tiles, 3), np.int32)
        self._entries: list[AttentionEntry] = []  # that the three arrays above hold
        self._counters: npt.NDArray[np.int64] = np.zeros(counters * COUNTER_BYTES // WORD, np.int64)
        self.alone = self.positions[:0]  # positions, if each row is the one token of a sequence and sampled; else empty
        self._queries = CrossQueries(num_tokens if self._has_source else 0)
        own = self._addresses()
        self._record: npt.NDArray[np.int64] = np.array([own, self._queries.record(own)], np.int64).ravel()
        self.address = int(self._record.ctypes.data)  # of the step record
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
            table_width=self.block_tables.shape[2],
            tile_seq=self.tile_seq.ctypes.data,
            tile_row=self.tile_row.ctypes.data,
            tile_split=self.tile_split.ctypes.data,
            counters=self._counters.ctypes.data,
            num_lora_groups=0,
            lora_rows=self.lora_rows.ctypes.data,
            lora_groups=self.lora_groups.ctypes.data,
            token_types=self.token_types.ctypes.data,
            slots_stride=self.slots.strides[0],
            tables_stride=self.block_tables.strides[0],
            state_read=self.state_read.ctypes.data,
            state_write=self.state_write.ctypes.data,
            rope_rows=self.positions.ctypes.data,
            vectors=0,
        )

    @property
    def num_entries(self) -> int:
        """Entries of attention's work in the step that was filled."""
        return len(self._entries)

    def _set(self, offset: int, value: int) -> None:
        self._record[offset // WORD] = value

    def fill(self, seqs: Sequence[ScheduledSeq], token_types: Sequence[Sequence[int]] = ()) -> int:
        """Lay out `seqs` one after the other; sample the last token and its drafts of each that needs a sample.

        `token_types` are given for each sequence, () when all are 0. Returns the number of adapters in the step.
        Raises StepTooLarge, having changed nothing, when the step does not fit.
        """
        self._require_room(seqs)
        ends = list(accumulate(len(seq.token_ids) for seq in seqs))
        samples = [
            row
            for seq, end in zip(seqs, ends, strict=True)
            if seq.needs_sample
            for row in range(end - 1 - seq.num_drafts, end)
        ]
        row = ends[-1] if ends else 0
        self.token_ids[:row] = [token for seq in seqs for token in seq.token_ids]
        self.positions[:row] = [p for seq in seqs for p in range(seq.start, seq.start + len(seq.token_ids))]
        self.sample_rows[: len(samples)] = samples
        self.query_start[1 : len(ends) + 1] = ends
        for types, seq, end in zip(token_types, seqs, ends, strict=False):
            self.token_types[end - len(seq.token_ids) : end] = types or 0
        if self._num_states:  # sequences without slots, such as texts, leave their states behind those of others
            self.state_read[: len(seqs)] = [seq.state[0] for seq in seqs]
            after = [slot or self._num_states + b for b, seq in enumerate(seqs) for slot in states_after(seq)]
            self.state_write[:row] = after
        for group, span in self._groups:
            self._place_tables(group, span, seqs)
        if self._has_source:
            for b, seq in enumerate(seqs):
                self._place_table(len(self._groups), b, seq.encoded, None)
        self._place_entries(self._work.divide(seqs))
        self._queries.fill(seqs)
        are_alone = row == len(seqs) == len(samples) == len(self._entries)
        self.set_sizes(row, len(seqs), len(self._entries), are_alone)
        self._set(STEP.num_samples, len(samples))
        if self.pictures is not None:
            has_some = self.pictures.fill(seqs, self.vectors[:row], self.rope_rows[:row])
            self.turn_by(self.rope_rows if has_some else self.positions)
            self._set(STEP.vectors, self.vectors.ctypes.data * has_some)
            has_ends = has_some and self.pictures.fill_ends(seqs, self.ends[:row])
            self._set(STEP.ends, self.ends.ctypes.data * has_ends)
        self._set(STEP_BYTES + STEP.num_tiles, row)
        num_groups = self._adapters.fill(seqs)
        self._set(STEP.num_lora_groups, num_groups)
        return num_groups

    def set_sizes(self, num_tokens: int, num_seqs: int, num_tiles: int, are_alone: bool) -> None:
        """Set the sizes of the step whose arrays are filled; `are_alone`: each row is the one token of a sequence."""
        self.alone = self.positions[: num_tokens if are_alone else 0]
        self._set(STEP.num_tokens, num_tokens)
        self._set(STEP.num_seqs, num_seqs)
        self._set(STEP.num_tiles, num_tiles)

    def turn_by(self, rows: Int32) -> None:
        """Rotate the tokens of the step by these rows of the rotary tables; `rows` is an array of this object."""
        self._set(STEP.rope_rows, rows.ctypes.data)

    def _place_entries(self, entries: list[AttentionEntry]) -> None:
        if entries is self._entries:
            return
        table = np.fromiter(chain.from_iterable(entries), np.int32).reshape(-1, len(AttentionEntry._fields))
        self.tile_seq[: len(table)], self.tile_row[: len(table)] = table[:, 0], table[:, 1]
        self.tile_split[: len(table)] = table[:, 2:]
        self._entries = entries

    def _require_room(self, seqs: Sequence[ScheduledSeq]) -> None:
        """Raise StepTooLarge for a step with which a kernel would read or write memory outside of these arrays."""
        num_seqs, num_tokens, num_samples = self.block_tables.shape[1], 0, 0
        for seq in seqs:
            end = seq.start + len(seq.token_ids)
            num_tokens += len(seq.token_ids)
            num_samples += 1 + seq.num_drafts
            if end > self._max_model_len:
                raise StepTooLarge(seq.request_id, f"a context of {end} tokens", f"max_model_len {self._max_model_len}")
            needs = [(table, end) for _, table in zip(self._groups, seq.block_tables, strict=True)]
            if self._has_source:
                needs.append((seq.encoded, num_source_tokens(seq)))
            for table, needed in needs:
                if needed > (held := len(table) * self._block_size):
                    raise StepTooLarge(seq.request_id, f"a context of {needed} tokens", f"{held} in its block table")
            if num_tokens > len(self.token_ids):
                raise StepTooLarge(seq.request_id, f"token {num_tokens} of the step", f"{len(self.token_ids)}")
            if num_samples > num_seqs:
                raise StepTooLarge(seq.request_id, f"sequence or draft {num_samples} of the step", f"{num_seqs}")

    def _place_tables(self, group: int, span: AttentionSpan, seqs: Sequence[ScheduledSeq]) -> None:
        """Fill in the block tables and slots of one group of layers."""
        size, slots, row = self._block_size, self.slots[group], 0
        for b, seq in enumerate(seqs):
            table, start, count = seq.block_tables[group], seq.start, len(seq.token_ids)
            self._place_table(group, b, table, span.num_behind(start) if span.window else None)
            if count == 1:
                slots[row] = table[start // size] * size + start % size
            else:
                positions = self.positions[row : row + count]
                slots[row : row + count] = self.block_tables[group, b, positions // size] * size + positions % size
            row += count

    def _place_table(self, group: int, b: int, table: Sequence[int], num_behind: int | None) -> None:
        """Fill in the table of sequence `b`; its first `num_behind` positions are not seen. None: there is no window.

        Without a window a table only grows, so the same table with the same length need not be written again.
        """
        placed, length = self._placed[group][b]
        if num_behind is None and placed is table and length == len(table):
            return
        # Kernels read a context by partitions, beginning with the one that has the first visible key.
        seen = (num_behind or 0) // PARTITION * PARTITION // self._block_size
        self.block_tables[group, b, seen : len(table)] = table[seen:]
        self._placed[group][b] = table, len(table)

    def sample(self, rows: Sequence[int]) -> None:
        """Sample only these rows of the step that was filled."""
        self.sample_rows[: len(rows)] = rows
        self._set(STEP.num_samples, len(rows))


class AdapterRows:
    """Arrays of the step record that name the rows of each adapter; `slots` are the adapters' slots, by digest."""

    def __init__(self, num_tokens: int, num_seqs: int, slots: Mapping[str, int]) -> None:
        self.rows: Int32 = np.zeros(num_tokens, np.int32)
        self.groups: Int32 = np.zeros((num_seqs, 3), np.int32)
        self._slots = slots

    def fill(self, seqs: Sequence[ScheduledSeq]) -> int:
        """Group the rows of `seqs`, which lie one after the other; return the number of groups."""
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
