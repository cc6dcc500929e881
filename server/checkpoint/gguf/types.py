"""Types of a GGUF file's tensors: the sizes of their blocks, and the values of blocks.

Both come from the package `gguf`, which ggml's authors maintain beside the format. It is imported when the first GGUF
file is opened, so that other models start without it.
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
    """One type: blocks of `block_size` neighbouring values of a row, of `block_bytes` bytes each."""

    name: str
    number: int
    block_size: int
    block_bytes: int

    def values(self, rows: Bytes) -> Float32:
        """Return the values of whole rows, [rows, bytes]. Raises NotImplementedError unless `is_readable`."""
        import gguf

        with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses values that are not finite
            values: Float32 = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(self.number))
        return values

    @property
    def is_readable(self) -> bool:
        """True when the package can compute the values."""
        return _is_readable(self)


@functools.cache
def block_type(number: int) -> BlockType | None:
    """Return the type with this number in a table of tensors, None where the package does not know it."""
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
