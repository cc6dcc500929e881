"""A checkpoint as the source of packed weights: reads a core's share, quantizes it if configured, and packs it.

A matrix that is quantized in the checkpoint keeps its codes and scales. Each thread works on one block of rows, so only
a few blocks are in memory beside the packed weights.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from ...checkpoint.checkpoint import Checkpoint
from ...config.formats import WeightFormats
from ...device.hbm import Buffer
from ...device.layout import FLOAT32_BYTES, is_grouped, scale_bytes, tile_bytes
from ...kernels.matmul.groups import quantize_groups
from ...kernels.matmul.packing import GroupMemory, pack_grouped, pack_weights
from ...kernels.matmul.quantize import quantize_rows, stored_rows
from ...models.linear import Vector
from ...placement.matrices import PackedShape
from ...placement.shard import ShardSpec
from .shard_reader import ShardReader, row_blocks
from .stored_groups import StoredGroups
from .weights import PackedShard


class CheckpointWeights:
    """Fills one piece of memory at a time; holds no weights in between."""

    def __init__(self, checkpoint: Checkpoint, shard: ShardSpec, formats: WeightFormats, num_threads: int = 1) -> None:
        self._checkpoint, self._formats = checkpoint, formats
        self._reader, self._stored = ShardReader(checkpoint, shard), StoredGroups(checkpoint, shard)
        self._pool = ThreadPoolExecutor(num_threads, "packing")

    def matrix(self, shape: PackedShape, core: int, into: PackedShard) -> None:
        for _ in self._pool.map(lambda rows: self._pack(shape, core, rows, into), row_blocks(shape)):
            pass  # a failed block raises here

    def _pack(self, shape: PackedShape, core: int, rows: slice, into: PackedShard) -> None:
        """Pack one block of rows into its part of the matrix's tiles."""
        weights = shape.format_in(self._formats)
        tiles = _of_rows(into.tiles, tile_bytes(weights, 1, shape.k), rows)
        if weights == "bfloat16" or weights == "float32":  # noqa: PLR1714 - narrows the type
            pack_weights(self._reader.matrix(shape, core, weights, rows), tiles)
            return
        if is_grouped(weights):
            self._pack_groups(shape, core, rows, into)
            return
        if self._reader.is_quantized(shape):
            quantized = stored_rows(*self._reader.codes(shape, core, rows), weights)
        else:
            quantized = quantize_rows(self._reader.matrix(shape, core, "float32", rows), weights)
        pack_weights(quantized.codes, tiles)
        assert into.scales is not None
        assert into.sums is not None
        into.scales.array(np.float32, shape.n)[rows] = quantized.scales
        into.sums.array(np.int32, shape.n)[rows] = quantized.sums

    def _pack_groups(self, shape: PackedShape, core: int, rows: slice, into: PackedShard) -> None:
        """Pack one block of rows in a format with groups."""
        weights, groups = shape.format_in(self._formats), self._formats.groups
        quantized = self._stored.grouped(shape, core, weights, groups, rows)
        if quantized is None:
            quantized = quantize_groups(self._reader.matrix(shape, core, "float32", rows), weights, groups)
        beside, sizes = (into.scales, into.sums), scale_bytes(weights, groups, 1, shape.k)
        scales, shifts = (
            None if memory is None else _of_rows(memory, size, rows) for memory, size in zip(beside, sizes, strict=True)
        )
        assert scales is not None
        tiles = _of_rows(into.tiles, tile_bytes(weights, 1, shape.k), rows)
        pack_grouped(quantized, weights, GroupMemory(tiles, scales, shifts))

    def vector(self, vector: Vector, offset: float, core: int, into: Buffer) -> None:
        whole = into.array(np.float32, into.num_bytes // FLOAT32_BYTES)
        for slot, values in self._reader.vector(vector, core):
            whole[slot : slot + values.size] = values + np.float32(offset)

    def bias(self, shape: PackedShape, core: int, into: Buffer) -> None:
        into.array(np.float32, shape.n)[:] = self._reader.bias(shape, core)

    def embedding(self, shape: PackedShape, core: int, into: Buffer) -> None:
        cell = np.uint16 if self._formats.dtype == "bfloat16" else np.float32
        whole = into.array(cell, shape.n, shape.k)
        for rows in row_blocks(shape):
            whole[rows] = self._reader.matrix(shape, core, self._formats.dtype, rows)

    def finish(self) -> None:
        self._pool.shutdown()


def _of_rows(memory: Buffer, row_bytes: int, rows: slice) -> npt.NDArray[np.uint8]:
    """Return the bytes of tiles, scales or sums that belong to `rows`, which are whole tiles."""
    return memory.bytes[rows.start * row_bytes : rows.stop * row_bytes]
