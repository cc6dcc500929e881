"""Products of a picture's rows around a vision encoder, by the packed kernels of its layers, on its first core."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ...device.layout import FLOAT32_BYTES, K_MULTIPLE, K_TILES, N_TILE, round_up, tile_bytes
from ...kernels.dispatch import linear_kernels
from ...kernels.matmul.epilogue import ACTIVATIONS
from ...kernels.matmul.packing import pack_weights
from ...kernels.program import Program
from ...kernels.records import STEP, MatmulOperands, PackOperands
from ...kernels.workers import WorkerPool
from ...models.vision import PRODUCT_ROWS, RowActivation, VisionSpec
from ..operands import Placement

Float32 = npt.NDArray[np.float32]


class Products:
    """Maker of products that share their working memory. PRODUCT_ROWS rows go through together."""

    def __init__(self, at: Placement, pool: WorkerPool, vision: VisionSpec) -> None:
        inputs, outputs = vision.product_widths
        self._core, self._pool, self._dtype = at.cores[0], pool, at.dtype
        self._rows, self._panels, self._products = (
            self._core.allocate("activations", f"picture {name}", PRODUCT_ROWS * size * FLOAT32_BYTES)
            for name, size in (("rows", inputs), ("panels", inputs), ("products", outputs))
        )
        self._step = np.zeros(len(STEP), np.int64)
        self._kernels = linear_kernels(at.dtype)
        self.kernels = [self._kernels.pack_rows, self._kernels.matmul]

    def of(self, matrix: Float32, bias: Float32 | None, activation: RowActivation) -> Callable[[Float32], Float32]:
        """Return `activation(rows @ matrix.T + bias)` with a matrix [outputs, inputs], which is packed."""
        outputs, inputs = matrix.shape
        n, k = round_up(outputs, N_TILE), round_up(inputs, K_MULTIPLE)
        padded = np.zeros((n, k), np.float32)
        padded[:outputs, :inputs] = matrix
        tiles = self._core.allocate("weights", "picture matrix", tile_bytes(self._dtype, n, k))
        is_half = self._dtype == "bfloat16"
        pack_weights(padded.astype(ml_dtypes.bfloat16).view(np.uint16) if is_half else padded, tiles.bytes)
        biases = self._core.allocate("weights", "picture bias", n * FLOAT32_BYTES)
        if bias is not None:
            biases.array(np.float32, n)[:outputs] = bias
        program = Program("picture product", self)
        program.add("pack", self._kernels.pack_rows, [PackOperands(self._rows.address, self._panels.address, 0, k)])
        product = MatmulOperands(
            activations=self._panels.address,
            row_scales=0,
            weights=tiles.address,
            column_scales=0,
            column_sums=0,
            output=self._products.address,
            n_tiles=n // N_TILE,
            k_tiles=k // K_TILES[self._dtype],
            ldc=n,
            rows_field=STEP.num_tokens,
            scratch=0,
            scratch_stride=0,
            activation=ACTIVATIONS.index("none" if activation == "identity" else activation),
            bias=biases.address,
        )
        program.add("product", self._kernels.matmul, [product])
        given = self._rows.bytes[: PRODUCT_ROWS * k * FLOAT32_BYTES].view(np.float32).reshape(-1, k)
        found = self._products.bytes[: PRODUCT_ROWS * n * FLOAT32_BYTES].view(np.float32).reshape(-1, n)

        def multiply(rows: Float32) -> Float32:
            result = np.empty((len(rows), outputs), np.float32)
            given[:, inputs:] = 0.0
            for first in range(0, len(rows), PRODUCT_ROWS):
                part = rows[first : first + PRODUCT_ROWS]
                given[: len(part), :inputs] = part
                self._step[STEP.num_tokens // self._step.itemsize] = len(part)
                self._pool.run(program, int(self._step.ctypes.data))
                result[first : first + len(part)] = found[: len(part), :outputs]
            return result

        return multiply
