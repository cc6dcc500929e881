"""One tensor of a GGUF file with the values of the model's own checkpoint, read by rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...config.formats import Quantization
from ..stored import GroupedCodes
from .files import Entry
from .groups import GROUP, GROUPED, grouped
from .orders import Order
from .types import Bytes, Float32


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of the model: rows [first_row, first_row + shape[0]) of a tensor in a file."""

    entry: Entry
    name: str  # in the file
    shape: tuple[int, ...]
    first_row: int = 0
    is_turned: bool = False  # the model has [inputs, outputs], the file [outputs, inputs]
    shift: float = 0.0  # added to the file's values
    is_exponent: bool = False  # the file has -exp of the values
    order: Order | None = None  # of rows; None: as in the model
    columns: Order | None = None

    @property
    def path(self) -> Path:
        return self.entry.file.path

    @property
    def dtype(self) -> str:
        return self.entry.info.type.name

    @property
    def has_values(self) -> bool:
        return self.entry.info.type.is_readable

    def rows(self, begin: int, end: int) -> Float32:
        """Return [begin, end) of the first axis as float32."""
        if len(self.shape) == 1:
            return self._vector(begin, end)
        if self.is_turned:
            whole = self.entry.info.type.values(self._bytes(0, self.shape[1]))
            return np.ascontiguousarray(whole[:, begin:end].T)
        values: Float32 = self.entry.info.type.values(self._bytes(begin, end)).reshape(end - begin, *self.shape[1:])
        return values if self.columns is None else values[:, self.columns]

    def _vector(self, begin: int, end: int) -> Float32:
        rows = max(1, self.shape[0] // self.entry.info.shape[-1])  # a file may have a vector as columns, or as groups
        whole = self.entry.info.type.values(self.entry.bytes_of(self.first_row, self.first_row + rows, self.name))
        values: Float32 = whole.reshape(-1)[self._places(begin, end)] + np.float32(self.shift)
        with np.errstate(invalid="ignore", divide="ignore"):  # the caller refuses values that are not finite
            return np.log(-values) if self.is_exponent else values

    @property
    def held_by(self) -> Quantization | None:
        """Format that holds the codes of a quantized type. Eight bits hold the values of every type."""
        if self.entry.info.type.block_size == 1 or len(self.shape) == 1:
            return None
        form = GROUPED.get(self.dtype)
        return "int8-groups" if form is None else form.held_by

    @property
    def group(self) -> int:
        """Number of inputs that share a scale; 0 where `grouped` cannot read the tensor."""
        is_whole = self.columns is None or bool((self.columns.reshape(-1, GROUP)[:, 0] % GROUP == 0).all())
        return GROUP if self.dtype in GROUPED and len(self.shape) > 1 and not self.is_turned and is_whole else 0

    def grouped(self, begin: int, end: int) -> GroupedCodes:
        """Return the codes of rows [begin, end)."""
        found = grouped(self.dtype, self._bytes(begin, end))
        if self.columns is None:
            return found
        groups = self.columns[::GROUP] // GROUP
        offsets = None if found.offsets is None else found.offsets[:, groups]
        return GroupedCodes(found.codes[:, self.columns], found.scales[:, groups], offsets, GROUP)

    def _bytes(self, begin: int, end: int) -> Bytes:
        """Return the bytes of the model's rows [begin, end). The file is read once, over all rows in between."""
        places = self._places(begin, end)
        if begin == end:
            return self.entry.bytes_of(0, 0, self.name)
        first, last = int(places.min()), int(places.max()) + 1
        rows = self.entry.bytes_of(self.first_row + first, self.first_row + last, self.name)
        return rows if self.order is None else rows[places - first]

    def _places(self, begin: int, end: int) -> Order:
        """Return the file's rows of the model's rows."""
        return np.arange(begin, end) if self.order is None else self.order[begin:end]
