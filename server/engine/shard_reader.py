"""One core's share of each matrix of a checkpoint, assembled from slices and padded with zeros to whole tiles.

Knows which rows and columns of which tensors lie where; `Checkpoint` reads them. Quantizes and packs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from server.config import Dtype, ModelSpec
from server.device.footprint import MatrixShape, Widths
from server.device.layout import interleave
from server.device.shard import ShardSpec
from server.engine.checkpoint import Checkpoint
from server.engine.tensor_names import EMBEDDING, LM_HEAD

Matrix = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Part:
    """`tensor[rows, columns]` begins at (row, column) of a core's matrix."""

    tensor: str
    row: int
    column: int = 0
    rows: slice | None = None
    columns: slice | None = None


class ShardReader:
    """Matrices are named by their modules, as `footprint.layer_matrices` and `head_matrix` give them."""

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec, shard: ShardSpec) -> None:
        self._checkpoint, self._spec, self._shard = checkpoint, spec, shard
        self._widths = Widths.of(spec, shard)

    def matrix(self, matrix: MatrixShape, core: int, dtype: Dtype) -> Matrix:
        """[n, k] as float32, or as the bits of bfloat16."""
        read = self._checkpoint.load_bf16 if dtype == "bfloat16" else self._checkpoint.load
        cell = np.uint16 if dtype == "bfloat16" else np.float32
        return self._assembled(matrix, core, np.zeros((matrix.n, matrix.k), cell), read)

    def codes(self, matrix: MatrixShape, core: int) -> tuple[npt.NDArray[np.uint8], Float32]:
        """[n, k] codes of a matrix that the checkpoint has quantized, and the scale of each row, [n]."""
        codes = self._assembled(matrix, core, np.zeros((matrix.n, matrix.k), np.uint8), self._checkpoint.load_codes)
        scales = np.zeros((matrix.n, 1), np.float32)
        for part in self._parts(matrix, core):
            values = self._checkpoint.load_scales(part.tensor, part.rows)
            scales[part.row : part.row + len(values), 0] = values
        return codes, np.ascontiguousarray(self._in_order(matrix, scales)[:, 0])

    def is_quantized(self, matrix: MatrixShape) -> bool:
        """Whether the checkpoint holds codes for it."""
        return all(self._checkpoint.is_quantized(part.tensor) for part in self._parts(matrix, 0))

    def qkv_bias(self, attention: str, core: int) -> Float32:
        """The biases of the core's rows of q, k and v; `attention` is such as `model.layers.0.self_attn.`."""
        values = np.zeros(self._widths.qkv, np.float32)
        for part in self._heads(attention, core, "bias"):
            values[part.row : part.row + self._spec.head_dim] = self._checkpoint.load(part.tensor, part.rows)
        return values

    def _assembled(self, matrix: MatrixShape, core: int, out: Matrix, read: Callable[..., Matrix]) -> Matrix:
        for part in self._parts(matrix, core):
            values = read(part.tensor, part.rows, part.columns)
            out[part.row : part.row + len(values), part.column : part.column + values.shape[1]] = values
        return self._in_order(matrix, out)

    def _in_order(self, matrix: MatrixShape, rows: Matrix) -> Matrix:
        """Gate and up come as halves and are wanted sixteen rows of each in turn."""
        if _role(matrix) != "gate_proj":
            return rows
        half = matrix.n // 2
        return interleave(rows[:half], rows[half:])

    def _parts(self, matrix: MatrixShape, core: int) -> list[Part]:
        """What the core's matrix is made of, padding left out."""
        role, weight = _role(matrix), f"{matrix.modules[0]}.weight"
        if role == "q_proj":
            return self._heads(matrix.modules[0].removesuffix("q_proj"), core, "weight")
        if role == "o_proj":
            size = self._spec.head_dim
            heads = [(slot, head) for slot, head in enumerate(self._shard.q_heads(core)) if head >= 0]
            return [Part(weight, 0, slot * size, columns=slice(head * size, (head + 1) * size)) for slot, head in heads]
        if role == "gate_proj":
            rows = self._intermediate(core)
            return [Part(f"{m}.weight", i * matrix.n // 2, rows=rows) for i, m in enumerate(matrix.modules)]
        if role == "down_proj":
            return [Part(weight, 0, columns=self._intermediate(core))]
        size = self._widths.vocab
        if role == "lm_head":
            weight = EMBEDDING if self._spec.is_tied else LM_HEAD
        return [Part(weight, 0, rows=slice(core * size, (core + 1) * size))]

    def _heads(self, attention: str, core: int, kind: str) -> list[Part]:
        """Rows of the core's query heads, then its k heads, then its v heads."""
        size, parts, row = self._spec.head_dim, [], 0
        kv_heads = self._shard.kv_heads(core)
        for projection, heads in (("q", self._shard.q_heads(core)), ("k", kv_heads), ("v", kv_heads)):
            for head in heads:
                if head >= 0:
                    tensor = f"{attention}{projection}_proj.{kind}"
                    parts.append(Part(tensor, row, rows=slice(head * size, (head + 1) * size)))
                row += size
        return parts

    def _intermediate(self, core: int) -> slice:
        """This core's part of the feed-forward dimension; may be shorter than the padded size, or empty."""
        size = self._shard.intermediate_per_core
        return slice(*(min(size * i, self._spec.intermediate_size) for i in (core, core + 1)))


def _role(matrix: MatrixShape) -> str:
    """The last part of the first module's name, such as q_proj or lm_head."""
    return matrix.modules[0].rpartition(".")[2]
