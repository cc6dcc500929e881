"""The types of a GGUF file's tensors: how large their blocks are, and the values that blocks of bytes stand for.

All of it is the package `gguf`'s, which ggml's authors keep beside the format. It is imported when the first GGUF file
is opened: no other model pays for it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class BlockType:
    """One type: blocks of `block_size` values next to each other in a row, of `block_bytes` bytes each."""

    name: str
    number: int
    block_size: int
    block_bytes: int

    def values(self, rows: Bytes) -> Float32:
        """The values of whole rows, [rows, bytes]. Raises NotImplementedError unless `is_readable`."""
        import gguf

        with np.errstate(over="ignore", invalid="ignore"):  # scales that are not finite: whoever asks looks for them
            values: Float32 = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(self.number))
        return values

    @property
    def is_readable(self) -> bool:
        """Whether the package knows the values."""
        return _is_readable(self)


@functools.cache
def block_type(number: int) -> BlockType | None:
    """The type of this number in a table of tensors, None for none that the package knows."""
    import gguf

    try:
        kind = gguf.GGMLQuantizationType(number)
    except ValueError:
        return None
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    return BlockType(kind.name, number, size, num_bytes)


@functools.cache
def _is_readable(kind: BlockType) -> bool:
    try:
        kind.values(np.zeros((1, kind.block_bytes), np.uint8))
    except NotImplementedError:
        return False
    return True
