"""Interface of a checkpoint's tensor, however its file stores the values, and the record of codes in groups.

`Checkpoint` has a `StoredTensor` for each of the model's tensors. It reads values from the file, or computes them row
by row from the codes there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..config.formats import Quantization

Float32 = npt.NDArray[np.float32]


E8M0_BYTES, E8M0_BIAS, E8M0_NAN = 1, 127, 255


def powers_of_two(scales: npt.NDArray[np.uint8]) -> Float32:
    """Return the scales of microscaling formats, E8M0, as float32."""
    exponents = scales.astype(np.int32) - E8M0_BIAS
    powers: Float32 = np.ldexp(np.float32(1.0), np.where(scales == E8M0_NAN, 0, exponents))
    return np.where(scales == E8M0_NAN, np.float32(np.nan), powers)


@dataclass(frozen=True, slots=True)
class GroupedCodes:
    """Rows of a quantized matrix: value[n, k] = scales[n, k // group] * codes[n, k] + offsets[n, k // group].

    Codes are small floats, or signed whole numbers, so that a symmetric matrix has no offsets. Codes of 4 bits are -8
    to 7: the zero point z of a format that counts codes from 0 to 15 is the offset scale * (8 - z), and a format that
    stores each group's least value m has the offset m + 8 * scale.
    """

    codes: npt.NDArray[Any]  # [n, k] int8, float4_e2m1fn or float8_e4m3fn
    scales: Float32  # [n, k / group]
    offsets: Float32 | None  # [n, k / group]; None = all 0
    group: int  # neighbouring inputs that share a scale

    def columns(self, columns: slice) -> GroupedCodes:
        """Return the codes of some inputs, which begin and end with a group."""
        groups = slice(columns.start // self.group, columns.stop // self.group)
        offsets = None if self.offsets is None else self.offsets[:, groups]
        return GroupedCodes(self.codes[:, columns], self.scales[:, groups], offsets, self.group)

    def values(self) -> Float32:
        """Return the rows [n, k] as float32. Values beyond the range become infinity."""
        rows, groups = self.scales.shape
        with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses them
            return self._values(rows, groups).reshape(rows, groups * self.group)

    def _values(self, rows: int, groups: int) -> Float32:
        values: Float32 = self.codes.reshape(rows, groups, self.group).astype(np.float32) * self.scales[:, :, None]
        if self.offsets is not None:
            values += self.offsets[:, :, None]
        return values

    def in_whole_numbers(self) -> GroupedCodes:
        """Return the same values with int8 codes: E2M1 codes are doubled."""
        if self.codes.dtype != ml_dtypes.float4_e2m1fn:
            return self
        codes = (self.codes.astype(np.float32) * 2).astype(np.int8)
        return GroupedCodes(codes, self.scales * np.float32(0.5), self.offsets, self.group)


class StoredTensor(Protocol):
    """One tensor, read by rows, by several threads at once. Raises CheckpointError when the file cannot be read."""

    @property
    def path(self) -> Path:
        """File of the tensor, for messages."""

    @property
    def dtype(self) -> str:
        """Stored format, for messages and for the choice of a reader: BF16, I8, Q4_K, GPTQ 4-bit..."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the model."""

    @property
    def has_values(self) -> bool:
        """True when rows are the tensor's values; otherwise they are codes, or of a dtype that no model takes."""

    def rows(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Return [begin, end) of the first axis (a scalar is one row), in a type that converts to float32."""


@runtime_checkable
class GroupedTensor(StoredTensor, Protocol):
    """A matrix that may be stored in few bits: codes with a scale for each `group` of a row's inputs, in order."""

    @property
    def held_by(self) -> Quantization | None:
        """Narrowest format with groups that holds the values (nearly, where there is no `group`); None = plain."""

    @property
    def group(self) -> int:
        """Number of inputs that share a scale; 0 = `grouped` cannot read the tensor."""

    def grouped(self, begin: int, end: int) -> GroupedCodes:
        """Return the codes of rows [begin, end)."""
