"""What a tensor of a checkpoint gives out, however its file stores the values, and the record of codes in groups.

`Checkpoint` asks tensors by the names that the model has for them; a `StoredTensor` stands for one of these, whether
its values lie in the file as they are or are made, row by row, of what lies there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GroupedCodes:
    """Rows of a matrix quantized to 4 bits: value[n, k] = scales[n, k // group] * codes[n, k] + offsets[n, k // group].

    Codes are signed, -8 to 7, so that a symmetric matrix has no offsets; a zero point z of a form that counts codes
    from 0 to 15 is the offset scale * (8 - z), and a form that stores each group's least value m has offset m + 8 *
    scale.
    """

    codes: npt.NDArray[np.int8]  # [n, k]
    scales: Float32  # [n, k / group]
    offsets: Float32 | None  # [n, k / group]; None = all 0
    group: int  # inputs, next to each other, that share a scale

    def columns(self, columns: slice) -> GroupedCodes:
        """Those of some inputs, which begin and end with a group."""
        groups = slice(columns.start // self.group, columns.stop // self.group)
        offsets = None if self.offsets is None else self.offsets[:, groups]
        return GroupedCodes(self.codes[:, columns], self.scales[:, groups], offsets, self.group)

    def values(self) -> Float32:
        """The rows [n, k] as float32."""
        rows, groups = self.scales.shape
        values = self.codes.reshape(rows, groups, self.group) * self.scales[:, :, None]
        if self.offsets is not None:
            values += self.offsets[:, :, None]
        return values.reshape(rows, groups * self.group)


class StoredTensor(Protocol):
    """One tensor, read by rows, by several threads at once. Raises CheckpointError when the file cannot be read."""

    @property
    def path(self) -> Path:
        """The file, for messages."""

    @property
    def dtype(self) -> str:
        """How values are stored, for messages and for the choice of a path: BF16, I8, Q4_K, GPTQ 4-bit..."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as the model has it."""

    @property
    def has_values(self) -> bool:
        """Whether rows are the tensor's values; otherwise they are codes, or nothing that a model takes."""

    def rows(self, begin: int, end: int) -> npt.NDArray[Any]:
        """[begin, end) of the first axis (a scalar counts as one row), of an element type that converts to float32."""


@runtime_checkable
class GroupedTensor(StoredTensor, Protocol):
    """A matrix whose file may have 4-bit codes with a scale for each `group` of inputs of a row, in order."""

    @property
    def group(self) -> int:
        """Inputs that share a scale; 0 = there are no such codes, and `grouped` cannot be asked for any."""

    def grouped(self, begin: int, end: int) -> GroupedCodes:
        """The codes of rows [begin, end)."""
