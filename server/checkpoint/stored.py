"""What a tensor of a checkpoint gives out, however its file stores the values, and the record of codes in groups.

`Checkpoint` asks tensors by the names that the model has for them; a `StoredTensor` stands for one of these, whether
its values lie in the file as they are or are made, row by row, of what lies there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import ml_dtypes
import numpy as np
import numpy.typing as npt

from neuronserve.server.config.formats import Quantization

Float32 = npt.NDArray[np.float32]


E8M0_BYTES, E8M0_BIAS, E8M0_NAN = 1, 127, 255


def powers_of_two(scales: npt.NDArray[np.uint8]) -> Float32:
    """The scales of microscaling formats, E8M0, as float32; NaN where one is no number."""
    exponents = scales.astype(np.int32) - E8M0_BIAS
    powers: Float32 = np.ldexp(np.float32(1.0), np.where(scales == E8M0_NAN, 0, exponents))
    return np.where(scales == E8M0_NAN, np.float32(np.nan), powers)


@dataclass(frozen=True, slots=True)
class GroupedCodes:
    """Rows of a quantized matrix: value[n, k] = scales[n, k // group] * codes[n, k] + offsets[n, k // group].

    Codes are small floats, or signed whole numbers, so that a symmetric matrix has no offsets. Those of 4 bits are -8
    to 7: a zero point z of a form that counts codes from 0 to 15 is the offset scale * (8 - z), and a form that stores
    each group's least value m has offset m + 8 * scale.
    """

    codes: npt.NDArray[Any]  # [n, k] int8, float4_e2m1fn or float8_e4m3fn
    scales: Float32  # [n, k / group]
    offsets: Float32 | None  # [n, k / group]; None = all 0
    group: int  # inputs, next to each other, that share a scale

    def columns(self, columns: slice) -> GroupedCodes:
        """Those of some inputs, which begin and end with a group."""
        groups = slice(columns.start // self.group, columns.stop // self.group)
        offsets = None if self.offsets is None else self.offsets[:, groups]
        return GroupedCodes(self.codes[:, columns], self.scales[:, groups], offsets, self.group)

    def values(self) -> Float32:
        """The rows [n, k] as float32. What is beyond range becomes infinity."""
        rows, groups = self.scales.shape
        with np.errstate(over="ignore", invalid="ignore"):  # whoever asks looks for it
            return self._values(rows, groups).reshape(rows, groups * self.group)

    def _values(self, rows: int, groups: int) -> Float32:
        values: Float32 = self.codes.reshape(rows, groups, self.group).astype(np.float32) * self.scales[:, :, None]
        if self.offsets is not None:
            values += self.offsets[:, :, None]
        return values

    def in_whole_numbers(self) -> GroupedCodes:
        """The same values by int8 codes: those of E2M1 are doubled."""
        if self.codes.dtype != ml_dtypes.float4_e2m1fn:
            return self
        codes = (self.codes.astype(np.float32) * 2).astype(np.int8)
        return GroupedCodes(codes, self.scales * np.float32(0.5), self.offsets, self.group)


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
    """A matrix that its file may have in few bits: codes with a scale for each `group` of inputs of a row, in order."""

    @property
    def held_by(self) -> Quantization | None:
        """The narrowest format with groups that holds the values: nearly, where there is no `group`. None = plain."""

    @property
    def group(self) -> int:
        """Inputs that share a scale; 0 = there are no such codes, and `grouped` cannot be asked for any."""

    def grouped(self, begin: int, end: int) -> GroupedCodes:
        """The codes of rows [begin, end)."""
