"""Matrices whose codes are packed into 32-bit words, read by rows of outputs.

GPTQ and AWQ pack [inputs, outputs], so rows of outputs are scattered over a tensor: the arrays of a few matrices are
kept, still packed, while their blocks of rows are read. Codes count from 0; a value is scale * (code - zero point).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..config.formats import Quantization
from ..errors import CheckpointError
from .packed_form import Layout, PackedForm
from .stored import Float32, GroupedCodes, StoredTensor

WORD_BITS = 32
KEPT = 4  # matrices whose arrays are kept: queries, keys and values are read side by side
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # for each of eight columns, its place in a word
Codes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Endings:
    """Endings of the names of a module's tensors."""

    codes: str
    scales: str
    zeros: str
    groups: str  # the group of each input, where groups are not in order


NAMES: dict[Layout, Endings] = {
    "gptq": Endings(".qweight", ".scales", ".qzeros", ".g_idx"),
    "awq": Endings(".qweight", ".scales", ".qzeros", ".g_idx"),
    "compressed-tensors": Endings(".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_g_idx"),
}
SHAPE = ".weight_shape"  # of compressed-tensors: not read, since it follows from the model


@dataclass(frozen=True, slots=True)
class PackedArrays:
    """Arrays of one matrix. Codes stay in the layout of the file."""

    codes: Array
    scales: Float32  # [n, groups]
    zeros: Codes | None  # [n, groups]; None = the middle of the codes
    groups: npt.NDArray[np.intp] | None  # [k]; None = in order


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """The weight of one module."""

    module: str
    path: Path
    shape: tuple[int, ...]
    form: PackedForm
    arrays: Callable[[str], PackedArrays]

    @property
    def dtype(self) -> str:
        return f"{self.form.layout} {self.form.bits}-bit"

    @property
    def has_values(self) -> bool:
        return True

    @property
    def held_by(self) -> Quantization:
        return "int4" if self.form.bits == 4 else "int8-groups"

    @property
    def group(self) -> int:
        """Inputs that share a scale, 0 for groups that are not in order."""
        is_in_order = self.arrays(self.module).groups is None
        return (self.form.group_size or self.shape[1]) if is_in_order else 0

    def rows(self, begin: int, end: int) -> Float32:
        """Return rows [begin, end) as float32."""
        arrays = self.arrays(self.module)
        codes, scales, zeros = (
            self._codes(arrays, begin, end),
            arrays.scales[begin:end],
            self._zeros(arrays, begin, end),
        )
        with np.errstate(over="ignore", invalid="ignore"):  # the caller refuses values that are not finite
            if arrays.groups is not None:
                return (codes.astype(np.float32) - zeros[:, arrays.groups]) * scales[:, arrays.groups]
            values = codes.reshape(*scales.shape, -1).astype(np.float32) - zeros[:, :, None]
            values *= scales[:, :, None]
        return values.reshape(codes.shape)

    def grouped(self, begin: int, end: int) -> GroupedCodes:
        """Return the codes of rows [begin, end) of a matrix that has a `group`."""
        arrays = self.arrays(self.module)
        middle = 1 << self.form.bits - 1
        codes = (self._codes(arrays, begin, end).astype(np.int16) - middle).astype(np.int8)
        scales, shift = arrays.scales[begin:end], np.float32(middle) - self._zeros(arrays, begin, end)
        return GroupedCodes(codes, scales, scales * shift if shift.any() else None, self.group)

    def _codes(self, arrays: PackedArrays, begin: int, end: int) -> Codes:
        bits = self.form.bits
        if self.form.layout == "compressed-tensors":
            return _unpacked(arrays.codes[begin:end], bits)[:, : self.shape[1]]
        if self.form.layout == "gptq":
            return _unpacked(np.ascontiguousarray(arrays.codes[:, begin:end].T), bits)
        per_word = WORD_BITS // bits
        first = begin // per_word * per_word
        words = arrays.codes[:, begin // per_word : -(-end // per_word)]
        return np.ascontiguousarray(_unpacked(words, bits, AWQ_ORDER)[:, begin - first : end - first].T)

    def _zeros(self, arrays: PackedArrays, begin: int, end: int) -> Float32:
        if arrays.zeros is None:
            return np.full_like(arrays.scales[begin:end], 1 << self.form.bits - 1)
        # GPTQ stores the zero point less one, so that a zero point of 0 is stored as all bits set.
        zeros = arrays.zeros[begin:end] + np.uint8(self.form.zero_shift) & np.uint8((1 << self.form.bits) - 1)
        return zeros.astype(np.float32)


def with_packed(
    tensors: Mapping[str, StoredTensor], form: PackedForm, expected: Mapping[str, tuple[int, ...]]
) -> dict[str, StoredTensor]:
    """Return `tensors` with one weight for each packed module in place of its arrays.

    Raises CheckpointError for arrays that are missing, or of another dtype or shape than the model's dimensions imply.
    """
    names = NAMES[form.layout]
    weights = {name.removesuffix(".weight"): shape for name, shape in expected.items() if name.endswith(".weight")}
    modules = {each: shape for each, shape in weights.items() if f"{each}{names.codes}" in tensors}
    reader = _Reader(tensors, form, modules)
    arrays = functools.lru_cache(KEPT)(reader.arrays)
    packed = {
        f"{module}.weight": PackedTensor(module, tensors[f"{module}{names.codes}"].path, shape, form, arrays)
        for module, shape in modules.items()
    }
    suffixes = (names.codes, names.scales, names.zeros, names.groups, SHAPE)
    used = {f"{module}{suffix}" for module in modules for suffix in suffixes}
    return {name: tensor for name, tensor in tensors.items() if name not in used} | packed


class _Reader:
    """Checks the arrays of all modules at once, and reads the arrays of one module."""

    def __init__(
        self, tensors: Mapping[str, StoredTensor], form: PackedForm, modules: Mapping[str, tuple[int, ...]]
    ) -> None:
        self._tensors, self._form, self._names = tensors, form, NAMES[form.layout]
        for module, shape in modules.items():
            self._check(module, shape)

    def arrays(self, module: str) -> PackedArrays:
        """Read all arrays of a module. Raises CheckpointError for a group number that is out of range."""
        is_rows = self._form.layout == "compressed-tensors"
        codes, scales = self._read(module, self._names.codes), self._read(module, self._names.scales)
        assert codes is not None
        assert scales is not None
        scales = np.ascontiguousarray(scales if is_rows else scales.T, np.float32)
        zeros = self._read(module, self._names.zeros)
        if zeros is not None:
            order = AWQ_ORDER if self._form.layout == "awq" else None
            words = np.ascontiguousarray(zeros.T) if is_rows else zeros
            zeros = np.ascontiguousarray(_unpacked(words, self._form.bits, order)[:, : len(scales)].T)
        return PackedArrays(codes, scales, zeros, self._groups(module, scales.shape[1]))

    def _groups(self, module: str, count: int) -> npt.NDArray[np.intp] | None:
        groups = self._read(module, self._names.groups)
        if groups is None or np.array_equal(groups, np.arange(groups.size) // (groups.size // count)):
            return None
        if groups.min() < 0 or groups.max() >= count:
            raise self._error(module, self._names.groups, f"has group {groups.max()}, there are {count}")
        return groups.astype(np.intp)

    def _check(self, module: str, shape: tuple[int, ...]) -> None:
        n, k = shape
        names, per_word = self._names, WORD_BITS // self._form.bits
        size = self._form.group_size or k
        if k % size or k % per_word or n % per_word:
            reason = f"[{n}, {k}] cannot be packed in groups of {size} and words of {per_word} codes"
            raise self._error(module, names.codes, reason)
        groups = k // size
        by_rows: dict[str, tuple[int, ...]] = {
            names.codes: (n, k // per_word),
            names.scales: (n, groups),
            names.zeros: (n // per_word, groups),
        }
        by_columns = {
            names.codes: (k // per_word, n) if self._form.layout == "gptq" else (k, n // per_word),
            names.scales: (groups, n),
            names.zeros: (groups, n // per_word),
        }
        is_rows = self._form.layout == "compressed-tensors"
        for suffix, expected in (by_rows if is_rows else by_columns).items():
            is_needed = suffix != names.zeros or not is_rows
            self._check_part(module, suffix, expected, is_needed, is_integer=suffix != names.scales)
        self._check_part(module, names.groups, (k,), is_needed=False, is_integer=True)

    def _check_part(
        self, module: str, suffix: str, shape: tuple[int, ...], is_needed: bool, *, is_integer: bool
    ) -> None:
        tensor = self._tensors.get(f"{module}{suffix}")
        if tensor is None:
            if is_needed:
                raise self._error(module, suffix, f"missing, though {module}{self._names.codes} is there")
            return
        if tensor.shape != shape:
            raise self._error(module, suffix, f"has shape {list(tensor.shape)}, config.json makes it {list(shape)}")
        if (is_integer and tensor.dtype != "I32") or not (is_integer or tensor.has_values):
            raise self._error(module, suffix, f"has dtype {tensor.dtype}, which is not supported there")

    def _read(self, module: str, suffix: str) -> Array | None:
        tensor = self._tensors.get(f"{module}{suffix}")
        return None if tensor is None else tensor.rows(0, tensor.shape[0])

    def _error(self, module: str, suffix: str, reason: str) -> CheckpointError:
        file = self._tensors[f"{module}{self._names.codes}"].path
        return CheckpointError(str(file), reason, f"{module}{suffix}")


def _unpacked(words: Array, bits: int, order: tuple[int, ...] | None = None) -> Codes:
    """Return codes [rows, words * codes of a word], the lowest bits first unless another order is given."""
    places = np.arange(WORD_BITS // bits) if order is None else np.array(order)
    codes = words.view(np.uint32)[:, :, None] >> (places * bits).astype(np.uint32) & np.uint32((1 << bits) - 1)
    return codes.astype(np.uint8).reshape(len(words), -1)
