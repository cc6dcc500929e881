"""4-bit codes that a checkpoint's files have: the groups in which they are served as they are, and their reading.

A code is kept where the groups served lie within those of the file on every core; a matrix of which that does not hold,
or that has no codes, is quantized from its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np

from server.checkpoint.checkpoint import Checkpoint
from server.config import GroupSize, RequestedFormats, WeightFormats, WeightGroups
from server.engine.load.shard_reader import ShardReader
from server.kernels.matmul.groups import GroupedRows, as_float16
from server.models.ops import Part
from server.models.spec import ModelSpec
from server.placement.matrices import PackedShape, packed_shapes
from server.placement.shard import ShardSpec

SIZES: tuple[GroupSize, ...] = tuple(sorted(get_args(GroupSize), reverse=True))
NO_CODE = 8  # stands for 0


class StoredGroups:
    """Reads codes for the cores' matrices."""

    def __init__(self, checkpoint: Checkpoint, shard: ShardSpec) -> None:
        self._checkpoint, self._shard = checkpoint, shard
        self._reader = ShardReader(checkpoint, shard)

    def served(self, spec: ModelSpec, formats: WeightFormats, requested: RequestedFormats) -> WeightFormats:
        """`formats` with the groups that keep most codes; as the files are, matrices whose codes are kept are int4.

        With float32 they are served as values: whoever asks for that wants no activations in 8 bits.
        """
        shapes = list(packed_shapes(spec, self._shard))
        parts = [part for shape in shapes for part in shape.linear.parts if self._checkpoint.group(part.weight)]
        if requested.quantization not in (None, "int4") or not parts:
            return formats
        size = max(SIZES, key=lambda each: len(self._kept(shapes, each)))
        groups = requested.groups or WeightGroups(size, self._is_symmetric(parts))
        kept = self._kept(shapes, groups.size)
        if requested.quantization == "int4":
            return replace(formats, groups=groups)
        if not kept or requested.dtype == "float32":
            return formats
        plain = (module for shape in shapes if shape not in kept for module in shape.modules)
        left_out = dict.fromkeys((*formats.modules_to_not_convert, *plain))
        return replace(formats, quantization="int4", groups=groups, modules_to_not_convert=tuple(left_out))

    def grouped(self, shape: PackedShape, core: int, groups: WeightGroups, rows: slice) -> GroupedRows | None:
        """The codes of a block of rows; None where the files have none that fit."""
        if not self._fits(shape, core, groups.size):
            return None
        size, num_rows = groups.size, rows.stop - rows.start
        codes = np.full((num_rows, shape.k), NO_CODE, np.uint8)
        scales = np.zeros((num_rows, -(-shape.k // size)), np.float32)
        shifts = np.zeros_like(scales)
        for piece in self._reader.cut(shape, core, rows):
            found = self._checkpoint.load_groups(piece.part.weight, piece.rows)
            if found.offsets is not None and groups.is_symmetric:
                return None
            columns = piece.columns or slice(0, found.codes.shape[1])
            into = slice(piece.row, piece.row + len(found.codes))
            width = columns.stop - columns.start
            codes[into, piece.column : piece.column + width] = found.codes[:, columns] + NO_CODE
            first, count = piece.column // size, -(-width // size)
            for values, stored in ((scales, found.scales), (shifts, found.offsets)):
                if stored is not None:
                    each = np.repeat(stored, found.group // size, axis=1)[:, columns.start // size :]
                    values[into, first : first + count] = each[:, :count]
        codes, scales, shifts = (self._reader.in_order(shape, values) for values in (codes, scales, shifts))
        return GroupedRows(codes, as_float16(scales), None if groups.is_symmetric else as_float16(shifts))

    def _kept(self, shapes: Sequence[PackedShape], size: int) -> list[PackedShape]:
        """Matrices whose codes are kept by groups of `size` on every core."""
        return [shape for shape in shapes if all(self._fits(shape, core, size) for core in range(self._shard.tp))]

    def _is_symmetric(self, parts: list[Part]) -> bool:
        """By the first row of each."""
        return all(self._checkpoint.load_groups(part.weight, slice(0, 1)).offsets is None for part in parts)

    def _fits(self, shape: PackedShape, core: int, size: int) -> bool:
        """Whether every group of `size` of the core's inputs lies in one group of the file, whose rows are outputs."""
        if any(part.is_transposed for part in shape.linear.parts):
            return False
        sizes = [self._checkpoint.group(part.weight) for part in shape.linear.parts]
        begins = [
            begin
            for column, columns in self._reader.columns(shape.linear, core)
            for begin in (column, 0 if columns is None else columns.start)
        ]
        return all(each and each % size == 0 for each in sizes) and all(begin % size == 0 for begin in begins)
