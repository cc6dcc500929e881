"""One core's share of each matrix of a checkpoint, assembled from slices and padded with zeros to whole tiles.

A share is asked for by blocks of rows, so that no more than a block is ever there beside what it is packed into.

Knows which rows and columns of which tensors lie where; `Checkpoint` reads them. Quantizes and packs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from server.checkpoint.checkpoint import Checkpoint
from server.checkpoint.tensor_names import EMBEDDING, LM_HEAD
from server.config import Dtype, ModelSpec
from server.device.footprint import MatrixShape, Widths
from server.device.layout import N_TILE
from server.device.shard import ShardSpec
from server.kernels.matmul.packing import interleave

Matrix = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

BLOCK = 1 << 18  # elements of a block: with what is made of them they stay in the L2 cache
BLOCK_ROWS = 2 * N_TILE  # and its rows are a multiple of: a tile of gate and one of up


def row_blocks(matrix: MatrixShape) -> Iterator[slice]:
    """All rows of `matrix` in blocks of about BLOCK elements, as `ShardReader` gives them out."""
    step = max(BLOCK_ROWS, BLOCK // matrix.k // BLOCK_ROWS * BLOCK_ROWS)
    return (slice(begin, min(begin + step, matrix.n)) for begin in range(0, matrix.n, step))


@dataclass(frozen=True, slots=True)
class Part:
    """`tensor[rows, columns]` begins at (row, column) of a core's matrix."""

    tensor: str
    row: int
    rows: slice
    column: int = 0
    columns: slice | None = None

    def cut(self, begin: int, end: int, row: int) -> Part | None:
        """What of it lies in rows [begin, end) of the matrix, for a matrix in which those begin at `row`."""
        first = max(begin, self.row)
        num_rows = min(end, self.row + self.rows.stop - self.rows.start) - first
        if num_rows <= 0:
            return None
        start = self.rows.start + first - self.row
        return replace(self, row=row + first - begin, rows=slice(start, start + num_rows))


class ShardReader:
    """Matrices are named by their modules, as `footprint.layer_matrices` and `head_matrix` give them.

    `rows` of a matrix are one of its `row_blocks`, or None for all.
    """

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec, shard: ShardSpec) -> None:
        self._checkpoint, self._spec, self._shard = checkpoint, spec, shard
        self._widths = Widths.of(spec, shard)

    def matrix(self, matrix: MatrixShape, core: int, dtype: Dtype, rows: slice | None = None) -> Matrix:
        """[rows, k] as float32, or as the bits of bfloat16."""
        if dtype == "bfloat16":
            return self._assembled(matrix, core, rows, np.uint16, self._checkpoint.load_bf16)
        return self._assembled(matrix, core, rows, np.float32, self._checkpoint.load)

    def codes(self, matrix: MatrixShape, core: int, rows: slice | None = None) -> tuple[npt.NDArray[np.uint8], Float32]:
        """[rows, k] codes of a matrix that the checkpoint has quantized, and the scale of each row, [rows]."""
        codes = self._assembled(matrix, core, rows, np.uint8, self._checkpoint.load_codes)
        scales = np.zeros((len(codes), 1), np.float32)
        for part in self._cut(matrix, core, rows):
            values = self._checkpoint.load_scales(part.tensor, part.rows)
            scales[part.row : part.row + len(values), 0] = values
        return codes, np.ascontiguousarray(_in_order(matrix, scales)[:, 0])

    def is_quantized(self, matrix: MatrixShape) -> bool:
        """Whether the checkpoint holds codes for it."""
        return all(self._checkpoint.is_quantized(part.tensor) for part in self._parts(matrix, 0))

    def qkv_bias(self, attention: str, core: int) -> Float32:
        """The biases of the core's rows of q, k and v; `attention` is such as `model.layers.0.self_attn.`."""
        values = np.zeros(self._widths.qkv, np.float32)
        for part in self._heads(attention, core, "bias"):
            biases = self._checkpoint.load(part.tensor, part.rows)
            values[part.row : part.row + len(biases)] = biases
        return values

    def _assembled(
        self, matrix: MatrixShape, core: int, rows: slice | None, cell: npt.DTypeLike, read: Callable[..., Matrix]
    ) -> Matrix:
        num_rows = matrix.n if rows is None else rows.stop - rows.start
        parts = self._cut(matrix, core, rows)
        pieces = [read(part.tensor, part.rows, part.columns) for part in parts]
        if len(pieces) == 1 and pieces[0].shape == (num_rows, matrix.k):
            return pieces[0]  # nothing to put together; gate and up are always two pieces
        out = np.zeros((num_rows, matrix.k), cell)
        for part, values in zip(parts, pieces, strict=True):
            out[part.row : part.row + len(values), part.column : part.column + values.shape[1]] = values
        return _in_order(matrix, out)

    def _cut(self, matrix: MatrixShape, core: int, rows: slice | None) -> list[Part]:
        """The parts of a block, laid out as `_in_order` takes them."""
        begin, end = (0, matrix.n) if rows is None else (rows.start, rows.stop)
        wanted = [(begin, end, 0)]
        if _is_halved(matrix):
            half, begin, end = matrix.n // 2, begin // 2, end // 2
            wanted = [(begin, end, 0), (half + begin, half + end, end - begin)]
        cut = [part.cut(*each) for part in self._parts(matrix, core) for each in wanted]
        return [part for part in cut if part is not None]

    def _parts(self, matrix: MatrixShape, core: int) -> list[Part]:
        """What the core's matrix is made of, padding left out."""
        role, weight, every = _role(matrix), f"{matrix.modules[0]}.weight", slice(0, self._spec.hidden_size)
        if role == "q_proj":
            return self._heads(matrix.modules[0].removesuffix("q_proj"), core, "weight")
        if role == "o_proj":
            size = self._spec.head_dim
            return [
                Part(weight, 0, every, slot * size, slice(head * size, (head + count) * size))
                for slot, head, count in _runs(self._shard.q_heads(core))
            ]
        if role == "gate_proj":
            rows = self._intermediate(core)
            return [Part(f"{m}.weight", i * matrix.n // 2, rows) for i, m in enumerate(matrix.modules)]
        if role == "down_proj":
            return [Part(weight, 0, every, columns=self._intermediate(core))]
        if role == "lm_head":
            weight = EMBEDDING if self._spec.is_tied else LM_HEAD
        return [Part(weight, 0, _share(core, self._widths.vocab, self._spec.vocab_size))]

    def _heads(self, attention: str, core: int, kind: str) -> list[Part]:
        """Rows of the core's query heads, then its k heads, then its v heads."""
        size, parts, row = self._spec.head_dim, [], 0
        kv_heads = self._shard.kv_heads(core)
        for projection, heads in (("q", self._shard.q_heads(core)), ("k", kv_heads), ("v", kv_heads)):
            tensor = f"{attention}{projection}_proj.{kind}"
            for slot, head, count in _runs(heads):
                parts.append(Part(tensor, row + slot * size, slice(head * size, (head + count) * size)))
            row += len(heads) * size
        return parts

    def _intermediate(self, core: int) -> slice:
        """This core's part of the feed-forward dimension; may be shorter than the padded size, or empty."""
        return _share(core, self._shard.intermediate_per_core, self._spec.intermediate_size)


def _role(matrix: MatrixShape) -> str:
    """The last part of the first module's name, such as q_proj or lm_head."""
    return matrix.modules[0].rpartition(".")[2]


def _is_halved(matrix: MatrixShape) -> bool:
    """Gate and up come as halves and are wanted sixteen rows of each in turn."""
    return _role(matrix) == "gate_proj"


def _in_order(matrix: MatrixShape, rows: Matrix) -> Matrix:
    half = len(rows) // 2
    return interleave(rows[:half], rows[half:]) if _is_halved(matrix) else rows


def _share(core: int, size: int, total: int) -> slice:
    """The part of `core` where each takes `size` of `total`."""
    return slice(min(size * core, total), min(size * (core + 1), total))


def _runs(heads: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(slot, head, count) of neighbouring slots with neighbouring heads; slots without a head are left out."""
    begin = 0
    for slot in range(1, len(heads) + 1):
        if slot == len(heads) or heads[slot] != heads[begin] + slot - begin or heads[begin] < 0:
            if heads[begin] >= 0:
                yield begin, heads[begin], slot - begin
            begin = slot
