"""One core's share of each matrix of a checkpoint, assembled from slices and padded with zeros to whole tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from server.config import Dtype, ModelSpec
from server.device.footprint import Widths
from server.device.layout import interleave
from server.device.shard import ShardSpec
from server.engine.checkpoint import Checkpoint

Matrix = npt.NDArray[Any]


class ShardReader:
    """Reads as float32, or as the bits of bfloat16. Prefixes are those of checkpoint names, such as `...self_attn.`."""

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec, shard: ShardSpec, dtype: Dtype) -> None:
        self._spec, self._shard, self._widths = spec, shard, Widths.of(spec, shard)
        self._cell: npt.DTypeLike = np.uint16 if dtype == "bfloat16" else np.float32
        self._read = checkpoint.load_bf16 if dtype == "bfloat16" else checkpoint.load
        self._read_vector = checkpoint.load

    def qkv(self, prefix: str, core: int) -> Matrix:
        """Rows of the core's query heads, then its k heads, then its v heads."""
        matrix = np.zeros((self._widths.qkv, self._widths.hidden), self._cell)
        for projection, row, rows in self._head_slices(core):
            part = self._read(f"{prefix}{projection}_proj.weight", rows)
            matrix[row : row + self._spec.head_dim, : self._spec.hidden_size] = part
        return matrix

    def qkv_bias(self, prefix: str, core: int) -> npt.NDArray[np.float32]:
        """The biases of those rows."""
        values = np.zeros(self._widths.qkv, np.float32)
        for projection, row, rows in self._head_slices(core):
            values[row : row + self._spec.head_dim] = self._read_vector(f"{prefix}{projection}_proj.bias", rows)
        return values

    def o(self, prefix: str, core: int) -> Matrix:
        """Columns of the core's query heads."""
        size = self._spec.head_dim
        matrix = np.zeros((self._widths.hidden, self._widths.attended), self._cell)
        for slot, head in enumerate(self._shard.q_heads(core)):
            if head >= 0:
                part = self._read(f"{prefix}o_proj.weight", None, slice(head * size, (head + 1) * size))
                matrix[: self._spec.hidden_size, slot * size : (slot + 1) * size] = part
        return matrix

    def gate_up(self, prefix: str, core: int) -> Matrix:
        """The core's rows of gate and up, sixteen of each in turn."""
        halves = []
        for projection in ("gate", "up"):
            matrix = np.zeros((self._widths.intermediate, self._widths.hidden), self._cell)
            rows = self._read(f"{prefix}{projection}_proj.weight", self._intermediate(core))
            matrix[: len(rows), : self._spec.hidden_size] = rows
            halves.append(matrix)
        return interleave(*halves)

    def down(self, prefix: str, core: int) -> Matrix:
        """The core's columns."""
        matrix = np.zeros((self._widths.hidden, self._widths.intermediate), self._cell)
        columns = self._read(f"{prefix}down_proj.weight", None, self._intermediate(core))
        matrix[: self._spec.hidden_size, : columns.shape[1]] = columns
        return matrix

    def vocabulary(self, name: str, core: int) -> Matrix:
        """The core's rows of the embedding or the output layer."""
        size = self._widths.vocab
        matrix = np.zeros((size, self._widths.hidden), self._cell)
        rows = self._read(name, slice(core * size, (core + 1) * size))
        matrix[: len(rows), : self._spec.hidden_size] = rows
        return matrix

    def _head_slices(self, core: int) -> list[tuple[str, int, slice]]:
        """(projection, first local row, rows of the checkpoint tensor) of every head on `core`, padding left out."""
        size, slices, row = self._spec.head_dim, [], 0
        kv_heads = self._shard.kv_heads(core)
        for projection, heads in (("q", self._shard.q_heads(core)), ("k", kv_heads), ("v", kv_heads)):
            for head in heads:
                if head >= 0:
                    slices.append((projection, row, slice(head * size, (head + 1) * size)))
                row += size
        return slices

    def _intermediate(self, core: int) -> slice:
        """This core's part of the feed-forward dimension; may be shorter than the padded size, or empty."""
        size = self._shard.intermediate_per_core
        return slice(*(min(size * i, self._spec.intermediate_size) for i in (core, core + 1)))
