"""A checkpoint as the source of packed weights: reads a core's share, quantizes it where asked, packs it.

A matrix that the checkpoint has quantized itself keeps the checkpoint's codes and scales. Works on blocks of rows, each
thread on one: beside the packed weights there is never more than a few blocks.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from server.checkpoint.checkpoint import Checkpoint
from server.checkpoint.tensor_names import EMBEDDING
from server.config import ModelSpec, WeightFormats
from server.device.footprint import MatrixShape, head_matrix
from server.device.hbm import Buffer
from server.device.layout import WEIGHT_BYTES
from server.device.shard import ShardSpec
from server.engine.load.shard_reader import ShardReader, row_blocks
from server.engine.load.weights import PackedShard, qkv_bias_name
from server.kernels.matmul.packing import pack_weights
from server.kernels.matmul.quantize import quantize_rows, stored_rows


class CheckpointWeights:
    """Fills one piece of memory at a time; holds no weights in between."""

    def __init__(
        self, checkpoint: Checkpoint, spec: ModelSpec, shard: ShardSpec, formats: WeightFormats, num_threads: int = 1
    ) -> None:
        self._checkpoint, self._spec, self._shard, self._formats = checkpoint, spec, shard, formats
        self._reader = ShardReader(checkpoint, spec, shard)
        self._pool = ThreadPoolExecutor(num_threads, "packing")

    def matrix(self, matrix: MatrixShape, core: int, into: PackedShard) -> None:
        for _ in self._pool.map(lambda rows: self._pack(matrix, core, rows, into), row_blocks(matrix)):
            pass  # the first block that fails raises here

    def _pack(self, matrix: MatrixShape, core: int, rows: slice, into: PackedShard) -> None:
        """One block of rows, whose tiles are a piece of the whole's."""
        weights = self._formats.of(*matrix.modules)
        row_bytes = matrix.k * WEIGHT_BYTES[weights]
        tiles = into.tiles.bytes[rows.start * row_bytes : rows.stop * row_bytes]
        if weights == "bfloat16" or weights == "float32":  # noqa: PLR1714 - narrows the type
            pack_weights(self._reader.matrix(matrix, core, weights, rows), tiles)
            return
        if self._reader.is_quantized(matrix):
            quantized = stored_rows(*self._reader.codes(matrix, core, rows), weights)
        else:
            quantized = quantize_rows(self._reader.matrix(matrix, core, "float32", rows), weights)
        pack_weights(quantized.codes, tiles)
        assert into.scales is not None
        assert into.sums is not None
        into.scales.array(np.float32, matrix.n)[rows] = quantized.scales
        into.sums.array(np.int32, matrix.n)[rows] = quantized.sums

    def vector(self, name: str, core: int, into: Buffer) -> None:
        del core  # the host keeps replicated values once
        values = self._checkpoint.load(name)
        into.array(np.float32, into.num_bytes // 4)[: values.size] = values

    def qkv_bias(self, name: str, core: int, into: Buffer) -> None:
        values = self._reader.qkv_bias(name.removesuffix(qkv_bias_name("")), core)
        into.array(np.float32, values.size)[:] = values

    def embedding(self, core: int, into: Buffer) -> None:
        head = head_matrix(self._spec, self._shard)
        shape = MatrixShape((EMBEDDING.removesuffix(".weight"),), head.n, head.k)
        cell = np.uint16 if self._formats.dtype == "bfloat16" else np.float32
        whole = into.array(cell, head.n, head.k)
        for rows in row_blocks(shape):
            whole[rows] = self._reader.matrix(shape, core, self._formats.dtype, rows)

    def finish(self) -> None:
        self._pool.shutdown()
