"""Reader of one core's share of each matrix of a checkpoint, assembled from slices and zero-padded to whole tiles.

A share is read by blocks of rows, so that only one block is in memory beside the packed weights. The axes of the linear
layer determine which rows and columns of which tensors a share has. Quantizes and packs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ...checkpoint.checkpoint import Checkpoint
from ...config.formats import Dtype
from ...device.layout import N_TILE
from ...kernels.matmul.packing import interleave
from ...models.linear import Channels, Linear, Vector, WeightRows
from ...placement.matrices import PackedShape
from ...placement.shard import ShardSpec

Matrix = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

BLOCK = 1 << 18  # elements of a block: they and their packed form stay in the L2 cache
BLOCK_ROWS = 2 * N_TILE  # rows of a block are a multiple of it: a tile of gate and one of up


def row_blocks(shape: PackedShape) -> Iterator[slice]:
    """Return all rows of a matrix in blocks of about BLOCK elements."""
    step = max(BLOCK_ROWS, BLOCK // shape.k // BLOCK_ROWS * BLOCK_ROWS)
    return (slice(begin, min(begin + step, shape.n)) for begin in range(0, shape.n, step))


@dataclass(frozen=True, slots=True)
class Piece:
    """`part`'s tensor[rows, columns] begins at (row, column) of a core's matrix."""

    part: WeightRows
    row: int
    rows: slice
    column: int = 0
    columns: slice | None = None  # None = all

    def cut(self, begin: int, end: int, row: int) -> Piece | None:
        """Return its share of rows [begin, end) of the matrix, for a matrix in which these rows begin at `row`."""
        first = max(begin, self.row)
        num_rows = min(end, self.row + self.rows.stop - self.rows.start) - first
        if num_rows <= 0:
            return None
        start = self.rows.start + first - self.row
        return replace(self, row=row + first - begin, rows=slice(start, start + num_rows))


class ShardReader:
    """Reads the matrices that a core holds. `rows` are one of `row_blocks`, or None for all."""

    def __init__(self, checkpoint: Checkpoint, shard: ShardSpec) -> None:
        self._checkpoint, self._shard = checkpoint, shard
        self._lock = Lock()
        self._transposed: tuple[str, Callable[..., Matrix] | None, Matrix] = ("", None, np.empty((0, 0)))

    def matrix(self, shape: PackedShape, core: int, dtype: Dtype, rows: slice | None = None) -> Matrix:
        """Read a matrix, [rows, k], as float32 or as the bits of bfloat16."""
        if any(part.factor != 1.0 for part in shape.linear.parts):
            values = self._scaled(shape, core, rows)
            return values.astype(ml_dtypes.bfloat16).view(np.uint16) if dtype == "bfloat16" else values
        if dtype == "bfloat16":
            return self._assembled(shape, core, rows, np.uint16, self._checkpoint.load_bf16)
        return self._assembled(shape, core, rows, np.float32, self._checkpoint.load)

    def _scaled(self, shape: PackedShape, core: int, rows: slice | None) -> Float32:
        """Read a matrix whose parts have factors."""
        factors = np.ones((shape.n if rows is None else rows.stop - rows.start, 1), np.float32)
        for piece in self.cut(shape, core, rows):
            factors[piece.row : piece.row + piece.rows.stop - piece.rows.start] = piece.part.factor
        values: Float32 = self._assembled(shape, core, rows, np.float32, self._checkpoint.load)
        return values * self.in_order(shape, factors)

    def codes(self, shape: PackedShape, core: int, rows: slice | None = None) -> tuple[npt.NDArray[np.uint8], Float32]:
        """Read the codes [rows, k] of a quantized matrix, and the scale of each row, [rows]."""
        codes = self._assembled(shape, core, rows, np.uint8, self._checkpoint.load_codes)
        scales = np.zeros((len(codes), 1), np.float32)
        for piece in self.cut(shape, core, rows):
            values = self._checkpoint.load_scales(piece.part.weight, piece.rows) * np.float32(piece.part.factor)
            scales[piece.row : piece.row + len(values), 0] = values
        return codes, np.ascontiguousarray(self.in_order(shape, scales)[:, 0])

    def is_quantized(self, shape: PackedShape) -> bool:
        """True when the checkpoint holds codes for the matrix."""
        return all(self._checkpoint.is_quantized(part.weight) for part in shape.linear.parts)

    def bias(self, shape: PackedShape, core: int) -> Float32:
        """Read the biases of the core's outputs, [n]."""
        values = np.zeros((shape.n, 1), np.float32)
        for piece in (each for each in self._pieces(shape, core) if not each.part.lacks_bias):
            biases = self._checkpoint.load(piece.part.bias, piece.rows) * np.float32(piece.part.factor)
            values[piece.row : piece.row + len(biases), 0] = biases
        return np.ascontiguousarray(self.in_order(shape, values)[:, 0])

    def vector(self, vector: Vector, core: int) -> Iterator[tuple[int, Float32]]:
        """Yield runs of the core's elements, each with its offset; one run for an undivided vector."""
        if isinstance(vector, Channels):
            yield from self._channels(vector, core)
            return
        values: Float32 = self._checkpoint.load(vector.tensor).reshape(-1)
        if vector.axis is None:
            yield 0, values
            return
        unit = vector.axis.unit_size
        for run in self._shard.runs(vector.axis, core):
            yield run.slot * unit, values[run.first * unit : (run.first + run.length) * unit]

    def _channels(self, vector: Channels, core: int) -> Iterator[tuple[int, Float32]]:
        taps, begin = max(1, vector.taps), 0
        values = self._checkpoint.load(vector.tensor).reshape(-1, taps)
        width = self._shard.vector_size(vector) // taps
        for axis, first in zip(vector.parts, vector.firsts, strict=True):
            for run in self._shard.runs(axis, core):
                rows = slice(first + run.first * axis.unit_size, first + (run.first + run.length) * axis.unit_size)
                at = begin + run.slot * axis.unit_size
                yield from ((tap * width + at, values[rows, tap]) for tap in range(taps))
            begin += self._shard.size(axis)

    def _assembled(
        self, shape: PackedShape, core: int, rows: slice | None, cell: npt.DTypeLike, read: Callable[..., Matrix]
    ) -> Matrix:
        num_rows = shape.n if rows is None else rows.stop - rows.start
        pieces = self.cut(shape, core, rows)
        values = [self._read(piece, read) for piece in pieces]
        if len(values) == 1 and values[0].shape == (num_rows, shape.k):
            return values[0]  # nothing to assemble; gate and up are always two pieces
        out = np.zeros((num_rows, shape.k), cell)
        for piece, each in zip(pieces, values, strict=True):
            out[piece.row : piece.row + len(each), piece.column : piece.column + each.shape[1]] = each
        return self.in_order(shape, out)

    def _read(self, piece: Piece, read: Callable[..., Matrix]) -> Matrix:
        """Read a piece. A transposed tensor is read whole, once for all its pieces; such models are small."""
        if not piece.part.is_transposed:
            return read(piece.part.weight, piece.rows, piece.columns)
        with self._lock:
            if self._transposed[:2] != (piece.part.weight, read):
                self._transposed = piece.part.weight, read, read(piece.part.weight).T
            whole = self._transposed[2]
        return np.ascontiguousarray(whole[piece.rows, piece.columns or slice(None)])

    def cut(self, shape: PackedShape, core: int, rows: slice | None) -> list[Piece]:
        """Return the pieces of a block, laid out as `in_order` takes them."""
        begin, end = (0, shape.n) if rows is None else (rows.start, rows.stop)
        ranges = [(begin, end, 0)]
        if shape.linear.is_interleaved:
            half, begin, end = shape.n // 2, begin // 2, end // 2
            ranges = [(begin, end, 0), (half + begin, half + end, end - begin)]
        cut = [piece.cut(*each) for piece in self._pieces(shape, core) for each in ranges]
        return [piece for piece in cut if piece is not None]

    def in_order(self, shape: PackedShape, rows: Matrix) -> Matrix:
        """Interleave the rows of gate and up, read as halves, by sixteen; return other rows unchanged."""
        half = len(rows) // 2
        return interleave(rows[:half], rows[half:]) if shape.linear.is_interleaved else rows

    def _pieces(self, shape: PackedShape, core: int) -> Iterator[Piece]:
        """Yield the pieces of the core's matrix without padding: units of the outputs by units of the inputs."""
        row = 0
        for part in shape.linear.parts:
            for slot, rows in self._rows(part, core):
                for column, columns in self.columns(shape.linear, core):
                    yield Piece(part, row + slot, rows, column, columns)
            row += shape.n // 2 if shape.linear.is_interleaved else self._shard.size(part.outputs)

    def _rows(self, part: WeightRows, core: int) -> Iterator[tuple[int, slice]]:
        """Yield runs of the core's outputs: the first row in the core's matrix, and the rows of the tensor."""
        unit = part.outputs.unit_size
        for run in self._shard.runs(part.outputs, core):
            length = 1 if part.unit_stride else run.length
            for i in range(0, run.length, length):
                begin = part.row(run.first + i)
                yield (run.slot + i) * unit, slice(begin, begin + length * unit)

    def columns(self, linear: Linear, core: int) -> Iterator[tuple[int, slice | None]]:
        """Yield runs of the core's inputs: the first column in the core's matrix, and the columns of the tensor."""
        if not linear.is_row_parallel:
            yield 0, slice(linear.first_column, linear.first_column + linear.inputs.size) if linear.row_length else None
            return
        unit = linear.inputs.unit_size
        for run in self._shard.runs(linear.inputs, core):
            yield run.slot * unit, slice(run.first * unit, (run.first + run.length) * unit)
