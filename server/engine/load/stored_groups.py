"""Quantized codes in a checkpoint's files: the formats that hold them, and their reading without conversion.

Codes are kept if every served group lies within one group of the file on every core. A matrix without that property,
or whose codes are no even steps, is quantized from its values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import numpy as np

from ...checkpoint.checkpoint import Checkpoint
from ...checkpoint.stored import GroupedCodes
from ...config.formats import (
    DEFAULT_GROUPS,
    GroupSize,
    Quantization,
    RequestedFormats,
    WeightFormat,
    WeightFormats,
    WeightGroups,
)
from ...device.layout import GROUP_MULTIPLE
from ...kernels.matmul.groups import Float32, GroupedRows, as_float16, zero_code
from ...models.graph import is_output
from ...models.linear import WeightRows
from ...models.spec import ModelSpec
from ...placement.matrices import PackedShape, packed_shapes
from ...placement.shard import ShardSpec
from .shard_reader import ShardReader

SIZES: tuple[GroupSize, ...] = tuple(sorted(get_args(GroupSize), reverse=True))
MAIN: tuple[Quantization, ...] = (
    "int4",
    "mxfp4",
    "mxfp8",
    "int8-groups",
)  # main formats, in order of preference
HELD: dict[WeightFormat, tuple[Quantization, ...]] = {  # stored formats whose codes a format keeps
    "int4": ("int4",),
    "mxfp4": ("mxfp4",),
    "mxfp8": ("mxfp8",),
    "int8-groups": ("int4", "mxfp4", "int8-groups"),
}


class StoredGroups:
    """Reads codes for the cores' matrices."""

    def __init__(self, checkpoint: Checkpoint, shard: ShardSpec) -> None:
        self._checkpoint, self._shard = checkpoint, shard
        self._reader = ShardReader(checkpoint, shard)

    def served(self, spec: ModelSpec, formats: WeightFormats, requested: RequestedFormats) -> WeightFormats:
        """Return `formats` with the group size that keeps most codes; without a request, each matrix as stored.

        With dtype float32 values are served: a user who asks for it wants no 8-bit activations.
        """
        if requested.quantization not in (None, "int4"):
            return formats
        shapes = list(packed_shapes(spec, self._shard))
        parts = [part for shape in shapes for part in shape.linear.parts if self._is_kept(part, "int4")]
        groups = requested.groups or DEFAULT_GROUPS
        if parts:
            size = max(SIZES, key=lambda each: len(self._kept(shapes, each)))
            groups = requested.groups or WeightGroups(size, self._is_symmetric(parts))
        if requested.quantization == "int4":
            keeps_output = any(is_output(shape.linear) for shape in self._kept(shapes, groups.size))
            return replace(formats, groups=groups, from_values=not keeps_output)
        if requested.dtype == "float32":
            return formats
        return self._as_stored(shapes, replace(formats, groups=groups), requested.may_microscale)

    def _as_stored(self, shapes: Sequence[PackedShape], formats: WeightFormats, may_microscale: bool) -> WeightFormats:
        """Serve each matrix in the format that holds it; the main format is that of most weights."""
        sizes: Counter[Quantization] = Counter()
        held = [self._format(shape, formats.groups.size, may_microscale) for shape in shapes]
        for shape, each in zip(shapes, held, strict=True):
            if each is not None:
                sizes[each] += shape.n * shape.k
        if not sizes:
            return formats
        main = max((each for each in MAIN if sizes[each]), key=lambda each: (each != "int8-groups", sizes[each]))
        wide = [each not in (None, main, "mxfp8") for each in held]
        plain = [each != main and not is_wide for each, is_wide in zip(held, wide, strict=True)]
        left_out = dict.fromkeys((*formats.modules_to_not_convert, *_modules(shapes, plain)))
        return replace(
            formats,
            quantization=main,
            from_values=False,
            modules_to_not_convert=tuple(left_out),
            groups=formats.groups if sizes["int4"] else DEFAULT_GROUPS,
            wide_modules=frozenset(_modules(shapes, wide)),
        )

    def _format(self, shape: PackedShape, size: int, may_microscale: bool) -> Quantization | None:
        """Return the narrowest format that holds a matrix; None = `dtype`, for values or mixed storage.

        Eight bits hold codes of narrower types too.
        """
        held = {self._checkpoint.held_by(part.weight) for part in shape.linear.parts}
        if held == {"int4"} and self._fits_all(shape, "int4", size):
            return "int4"
        for each in ("mxfp4", "mxfp8"):
            if held == {each} and may_microscale and self._fits_all(shape, each, GROUP_MULTIPLE):
                return each
        return None if held & {None, "mxfp8"} else "int8-groups"

    def grouped(
        self, shape: PackedShape, core: int, weights: WeightFormat, groups: WeightGroups, rows: slice
    ) -> GroupedRows | None:
        """Read the codes of a block of rows; None when the files have none that fit."""
        size, num_rows = groups.size if weights == "int4" else GROUP_MULTIPLE, rows.stop - rows.start
        if not self._fits(shape, core, weights, size):
            return None
        codes = np.full((num_rows, shape.k), zero_code(weights), np.uint8)
        scales = np.zeros((num_rows, -(-shape.k // size)), np.float32)
        shifts = np.zeros_like(scales)
        for piece in self._reader.cut(shape, core, rows):
            found = self._checkpoint.load_groups(piece.part.weight, piece.rows)
            found = found.in_whole_numbers() if weights == "int8-groups" else found
            if not _holds(weights, groups, found):
                return None
            columns = piece.columns or slice(0, found.codes.shape[1])
            into = slice(piece.row, piece.row + len(found.codes))
            width = columns.stop - columns.start
            bytes_of = found.codes[:, columns].view(np.uint8) + np.uint8(zero_code(weights))
            codes[into, piece.column : piece.column + width] = bytes_of
            first, count = piece.column // size, -(-width // size)
            for values, stored in ((scales, found.scales), (shifts, found.offsets)):
                if stored is not None:
                    each = np.repeat(stored, found.group // size, axis=1)[:, columns.start // size :]
                    values[into, first : first + count] = each[:, :count]
        codes, scales, shifts = (self._reader.in_order(shape, values) for values in (codes, scales, shifts))
        if weights in ("mxfp4", "mxfp8"):
            return GroupedRows(codes, scales)
        is_shifted = weights == "int4" and not groups.is_symmetric
        return GroupedRows(codes, as_float16(scales), as_float16(shifts) if is_shifted else None)

    def _kept(self, shapes: Sequence[PackedShape], size: int) -> list[PackedShape]:
        """Return the matrices whose codes are kept in int4 by groups of `size`."""
        return [shape for shape in shapes if self._fits_all(shape, "int4", size)]

    def _is_symmetric(self, parts: list[WeightRows]) -> bool:
        """Return whether the first row of each tensor has no offsets."""
        return all(self._checkpoint.load_groups(part.weight, slice(0, 1)).offsets is None for part in parts)

    def _is_kept(self, part: WeightRows, weights: WeightFormat) -> bool:
        """Return whether the file holds codes of this tensor that the format keeps."""
        return self._checkpoint.group(part.weight) > 0 and self._checkpoint.held_by(part.weight) in HELD[weights]

    def _fits_all(self, shape: PackedShape, weights: WeightFormat, size: int) -> bool:
        """Return whether codes are kept on every core."""
        return all(self._fits(shape, core, weights, size) for core in range(self._shard.tp))

    def _fits(self, shape: PackedShape, core: int, weights: WeightFormat, size: int) -> bool:
        """Return whether every group of `size` of the core's inputs lies in one group of the file."""
        if any(part.is_transposed or not self._is_kept(part, weights) for part in shape.linear.parts):
            return False
        sizes = [self._checkpoint.group(part.weight) for part in shape.linear.parts]
        begins = [
            begin
            for column, columns in self._reader.columns(shape.linear, core)
            for begin in (column, 0 if columns is None else columns.start)
        ]
        return all(each % size == 0 for each in sizes) and all(begin % size == 0 for begin in begins)


def _modules(shapes: Sequence[PackedShape], chosen: Sequence[bool]) -> list[str]:
    return [module for shape, is_chosen in zip(shapes, chosen, strict=True) if is_chosen for module in shape.modules]


def _holds(weights: WeightFormat, groups: WeightGroups, found: GroupedCodes) -> bool:
    """Return whether a format can hold these codes' offsets and scales."""
    if found.offsets is not None and (weights != "int4" or groups.is_symmetric):
        return False
    return weights != "int8-groups" or _are_near(found.scales)


def _are_near(scales: Float32) -> bool:
    """Return whether all scales are zero or normal numbers of float16."""
    largest, normal = np.finfo(np.float16).max, np.finfo(np.float16).smallest_normal
    size = np.abs(scales)
    return bool(((size == 0) | (size >= normal) & (size <= largest)).all())
