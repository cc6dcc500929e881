"""Memory of the two convolutions before an encoder of sound, on the first core, for one window at a time."""

from __future__ import annotations

from dataclasses import dataclass

from ..config.formats import Dtype
from ..device.hbm import ALIGNMENT
from ..device.layout import FLOAT32_BYTES, K_MULTIPLE, N_TILE, round_up
from ..models.input_graph import FRAMES
from ..models.spec import ModelSpec
from .core_share import DTYPE_BYTES

FRAMES_OF_A_ROW = 2  # the second convolution reads every second frame


@dataclass(frozen=True, slots=True)
class SoundSizes:
    """Rows and widths, in elements, of what each convolution reads and writes."""

    frames: int
    rows: int
    first_inputs: int
    second_inputs: int
    width: int  # of the outputs of both

    @classmethod
    def of(cls, encoder: ModelSpec) -> SoundSizes | None:
        """Return the sizes; None for an encoder of texts."""
        channels, rows = encoder.stack.input.num_channels, encoder.max_position
        if not channels:
            return None
        first, second = (round_up(FRAMES * size, K_MULTIPLE) for size in (channels, encoder.hidden_size))
        return cls(FRAMES_OF_A_ROW * rows, rows, first, second, round_up(encoder.hidden_size, K_MULTIPLE))

    def buffers(self, dtype: Dtype) -> dict[str, int]:
        """Return the bytes of each buffer by name. Panels are packed rows of either convolution."""
        frames, rows = round_up(self.frames, N_TILE), round_up(self.rows, N_TILE)
        panels = max(frames * self.first_inputs, rows * self.second_inputs) * DTYPE_BYTES[dtype]
        return {
            "frames": frames * self.first_inputs * FLOAT32_BYTES,
            "convolved": frames * self.width * FLOAT32_BYTES,
            "neighbours": rows * self.second_inputs * FLOAT32_BYTES,
            "rows": rows * self.width * FLOAT32_BYTES,
            "panels": panels,
        }

    def num_bytes(self, dtype: Dtype) -> int:
        """Return the bytes of all buffers."""
        return sum(round_up(size, ALIGNMENT) for size in self.buffers(dtype).values())
