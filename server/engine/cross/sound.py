"""The beginning of an encoder of sound: two convolutions make a row of the stream of every two frames.

A convolution is a matrix product of rows that hold a frame and its neighbours (Radford et al. 2022, section 2.2); these
rows are laid out on the host. Features are float32 [channels, frames], as transformers' feature extractor makes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ...kernels.dispatch import linear_kernels
from ...kernels.matmul.epilogue import ACTIVATIONS
from ...kernels.program import Program
from ...kernels.records import STEP, WORD, StepRecord
from ...kernels.workers import WorkerPool
from ...models.decoder import decoder_graph
from ...models.input_graph import FRAMES
from ...models.linear import Linear
from ...models.ops import AddRows
from ...placement.sound_sizes import SoundSizes
from ...types import MediaItem
from ..operands import Operands, Placement

Float32 = npt.NDArray[np.float32]


class SoundStem:
    """Fills the stream of a placed encoder of sound. Not thread-safe."""

    def __init__(self, at: Placement, sizes: SoundSizes, pool: WorkerPool) -> None:
        """Allocate the buffers on the first core. Raises HostMemoryError."""
        self._pool, self._sizes = pool, sizes
        self.shape = at.spec.stack.input.num_channels, sizes.frames  # of a window
        core, self._channels, self._hidden_size = at.cores[0], at.spec.stack.input.num_channels, at.spec.hidden_size
        buffers = {
            name: core.allocate("activations", f"sound {name}", size) for name, size in sizes.buffers(at.dtype).items()
        }
        self._frames, self._neighbours, self._convolved, self._rows = (
            buffers[name].array(np.float32, -1, width)
            for name, width in (
                ("frames", sizes.first_inputs),
                ("neighbours", sizes.second_inputs),
                ("convolved", sizes.width),
                ("rows", sizes.width),
            )
        )
        self._panels = buffers["panels"]
        self._stream: Float32 = at.buffers.hidden.array(np.float32, -1, at.buffers.widths.hidden)
        graph = decoder_graph(at.spec)
        first, second = (op for op in graph.prelude if isinstance(op, Linear))
        self._first = self._program(at, first, self._frames, self._convolved)
        self._second = self._program(at, second, self._neighbours, self._rows)
        [table] = (op for op in graph.prelude if isinstance(op, AddRows))
        memory, is_wide = at.weights.tables[table.table.weight], at.dtype == "float32"
        whole = memory.array(np.float32 if is_wide else ml_dtypes.bfloat16, -1, at.buffers.widths.hidden)
        self._positions: Float32 = np.ascontiguousarray(whole[: sizes.rows], np.float32)
        self._record: npt.NDArray[np.int64] = np.zeros(len(StepRecord._fields), np.int64)

    @property
    def programs(self) -> tuple[Program, Program]:
        """The program of each convolution."""
        return self._first, self._second

    def _program(self, at: Placement, linear: Linear, source: Float32, output: Float32) -> Program:
        matrix, operands, program = at.weights.matrix(linear), Operands(at), Program(linear.name, (at, self))
        kernels, panels = linear_kernels(matrix.weights, at.isa), (self._panels.address, 0)
        program.add(f"{linear.name} pack", kernels.pack_rows, [operands.pack(source.ctypes.data, panels, matrix.k)])
        cores = len(matrix.shards)
        [product, *_] = operands.matmul(matrix, [panels] * cores, [output.ctypes.data] * cores, self._sizes.width)
        program.add(linear.name, kernels.matmul, [product._replace(activation=ACTIVATIONS.index("gelu"))])
        return program

    def fill(self, items: Sequence[MediaItem]) -> None:
        """Write the rows of each window of sound to the stream, one after the other."""
        count, size = self._sizes.rows, self._hidden_size
        for i, item in enumerate(items):
            features = np.frombuffer(item.pixels, np.float32).reshape(item.shape)
            around = np.lib.stride_tricks.sliding_window_view(np.pad(features, ((0, 0), (1, 1))), FRAMES, axis=1)
            self._frames[: 2 * count, : FRAMES * self._channels] = around.transpose(1, 0, 2).reshape(2 * count, -1)
            self._run(self._first, 2 * count)
            self._place_neighbours(self._convolved[: 2 * count, :size])
            self._run(self._second, count)
            np.add(self._rows[:count], self._positions, out=self._stream[i * count : (i + 1) * count])

    def _place_neighbours(self, frames: Float32) -> None:
        """Lay out each second frame with the frames around it; there is a frame of zeros before the first."""
        count, size = len(frames) // 2, frames.shape[1]
        strides = self._neighbours.strides[0], FRAMES * frames.itemsize, frames.itemsize
        at = np.lib.stride_tricks.as_strided(self._neighbours, (count, size, FRAMES), strides)
        at[0, :, 0] = 0.0
        at[1:, :, 0], at[:, :, 1], at[:, :, 2] = frames[1:-1:2], frames[::2], frames[1::2]

    def _run(self, program: Program, rows: int) -> None:
        self._record[STEP.num_tokens // WORD] = rows
        self._pool.run(program, self._record.ctypes.data)
