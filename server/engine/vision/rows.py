"""Rows of a step that belong to pictures: the addresses of their vectors, and rotations by time, row and column.

Positions of Qwen-VL's M-RoPE (Qwen2-VL, arXiv:2409.12191, section 2.1): a picture's tokens share the time of its first
token and count its rows and columns from there; the text goes on behind the largest of these numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...host.address_map import ADDRESSES
from ...models.layer import RopeSpec
from ...models.vision import VisionSpec
from ...types import MediaItem, ScheduledSeq
from ..buffers import RopeTable
from ..rope_tables import inverse_frequencies

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Rotation = tuple[RopeSpec | None, int]  # and the size of the heads
_KEPT = 1024  # requests whose layouts are kept


class Vectors:
    """Vectors of pictures, each a block of the encodings' budget. The host backs a row when it is first written."""

    def __init__(self, num_rows: int, width: int) -> None:
        self.num_rows = num_rows
        self._rows: Float32 = np.empty((num_rows, width), np.float32)
        ADDRESSES.register("vectors of pictures", self._rows, is_indirect=True)

    def put(self, blocks: Sequence[int], vectors: Float32) -> None:
        """Write a picture's vectors, [tokens, width]."""
        self._rows[np.asarray(blocks)] = vectors

    def addresses(self, blocks: Sequence[int]) -> Int64:
        """Return the address of the vector in each block."""
        return np.asarray(blocks, np.int64) * self._rows.strides[0] + self._rows.ctypes.data


@dataclass(frozen=True, slots=True)
class Layout:
    """Pictures in one prompt."""

    index: Int32  # [prompt] of the token's vector among those of all pictures, -1 for none
    places: Int32  # [3, prompt] time, row and column
    delta: int  # added to the position of a token after the prompt
    ends: Int32  # [prompt] end of the token's picture, or of the token


def placeholders(prompt: Sequence[int], item: MediaItem, token_id: int) -> Int64:
    """Return the positions of a picture's placeholders; fewer than `num_tokens` if the prompt has no more."""
    ids = np.asarray(prompt[item.offset :], np.int64)
    return item.offset + np.flatnonzero(ids == token_id)[: item.num_tokens]


def layout_of(prompt: Sequence[int], media: Sequence[MediaItem], vision: VisionSpec, has_places: bool) -> Layout:
    """Find the pictures' tokens, and their places where rotations depend on these."""
    index, num_vectors = np.full(len(prompt), -1, np.int32), 0
    places = np.tile(np.arange(len(prompt), dtype=np.int32), (3, 1))
    ends = places[0] + 1
    for picture in media:
        at = placeholders(prompt, picture, vision.token_id)
        index[at] = num_vectors + np.arange(len(at))
        num_vectors += picture.num_tokens
        if not len(at):
            continue
        ends[at] = at[-1] + 1
        if not has_places:
            continue
        _, height, width = (max(1, size // vision.merge) for size in picture.grid)
        begin, end, count = int(at[0]), int(at[-1]) + 1, np.arange(len(at))
        first = places[0, begin]
        places[1, at] = first + count // width % height
        places[2, at] = first + count % width
        places[0, at] = first + count // (width * height)
        places[:, end:] += first + max(height, width) - places[0, begin] - (end - begin)
    return Layout(index, places, int(places[0, -1]) + 1 - len(prompt), ends)


class PictureRows:
    """Implements neuronserve.server.engine.step_inputs.PictureRows."""

    def __init__(
        self, vision: VisionSpec, vectors: Vectors, tables: Mapping[Rotation, RopeTable], first_row: int
    ) -> None:
        """The rotary tables have, from `first_row` on, a row for each token of the largest step."""
        self._vision, self._vectors, self._first_row = vision, vectors, first_row
        self._tables = [(rope, table) for (rope, _), table in tables.items() if rope is not None and rope.sections]
        self._layouts: dict[tuple[str, bytes], Layout] = {}

    def fill(self, seqs: Sequence[ScheduledSeq], vectors: Int64, rope_rows: Int32) -> bool:
        if not any(seq.media for seq in seqs):
            return False
        vectors[:], row = 0, 0
        for seq in seqs:
            end = row + len(seq.token_ids)
            rope_rows[row:end] = np.arange(seq.start, seq.start + len(seq.token_ids))
            if seq.media:
                self._place(seq, vectors[row:end], rope_rows[row:end], row)
            row = end
        return True

    def fill_ends(self, seqs: Sequence[ScheduledSeq], ends: Int32) -> bool:
        if self._vision.span_layers == "none":
            return False
        row, sees_ahead = 0, False
        for seq in seqs:
            own = ends[row : row + len(seq.token_ids)]
            own[:] = usual = np.arange(seq.start + 1, seq.start + len(own) + 1)
            if seq.media:
                shown = self._layout(seq).ends[seq.start : seq.start + len(own)]
                own[: len(shown)] = shown
                sees_ahead |= bool((own != usual).any())
            row += len(own)
        return sees_ahead

    def _place(self, seq: ScheduledSeq, vectors: Int64, rope_rows: Int32, row: int) -> None:
        layout = self._layout(seq)
        begin, end = seq.start, min(seq.start + len(seq.token_ids), seq.num_prompt_tokens)
        if begin < end:
            index = layout.index[begin:end]
            own = np.flatnonzero(index >= 0)
            vectors[own] = self._vectors.addresses(seq.encoded)[index[own]]
        if self._tables:
            rope_rows += layout.delta  # right for tokens after the prompt
            if begin < end:
                self._turn(layout.places[:, begin:end], rope_rows[: end - begin], row)

    def _turn(self, places: Int32, rope_rows: Int32, row: int) -> None:
        """Choose the row of each token: that of its position, or an own one where its three places differ."""
        rope_rows[:] = places[0]
        own = np.flatnonzero((places[0] != places[1]) | (places[0] != places[2]))
        if not len(own):
            return
        rope_rows[own] = rows = self._first_row + row + own
        for rope, table in self._tables:
            half = table.rotary_dim // 2
            angles = places[section_of_pairs(rope, half)][:, own].T * inverse_frequencies(rope, table.rotary_dim)
            cos, sin = (each.array(np.float32, -1, half) for each in (table.cos, table.sin))
            cos[rows], sin[rows] = np.cos(angles) * rope.attention_factor, np.sin(angles) * rope.attention_factor

    def _layout(self, seq: ScheduledSeq) -> Layout:
        key = seq.request_id, seq.media[0].digest
        found = self._layouts.get(key)
        if found is None:
            prompt = seq.history[: seq.num_prompt_tokens]
            found = layout_of(prompt, seq.media, self._vision, bool(self._tables))
            if len(self._layouts) >= _KEPT:
                del self._layouts[next(iter(self._layouts))]
            self._layouts[key] = found
        return found


def section_of_pairs(rope: RopeSpec, num_pairs: int) -> Int64:
    """Return for each pair whether time, row or column turns it: 0, 1 or 2."""
    if not rope.has_mixed_sections:
        return np.repeat(np.arange(3), rope.sections)
    sections = np.zeros(num_pairs, np.int64)
    for axis in (1, 2):
        sections[axis : 3 * rope.sections[axis] : 3] = axis
    return sections
