"""Weights of one checkpoint directory: found, checked against the model's dimensions, and read slice by slice.

Never unpickles and never follows a name out of the directory. Holds no weights: each `load` reads only the requested
slice (whole rows where columns are requested), a chunk at a time, so that loading never needs the model twice. Several
threads may load at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16, float8_e4m3fn

from ..config.formats import Quantization
from ..errors import CheckpointError
from ..models.spec import ModelSpec
from ..models.tensors import embedding_weight, scale_name, tensor_shapes, tied_weight
from .compressed_tensors import Stored
from .microscaling import MicroscalingForm, with_microscaled
from .packed import with_packed
from .packed_form import PackedForm
from .reshaped import with_shapes
from .safetensors_file import SafetensorsFile
from .scaled_blocks import BlockForm, with_blocks
from .sines import with_sines
from .stored import GroupedCodes, GroupedTensor, StoredTensor
from .tensor_files import READABLE, PlainTensor, open_tensors

CODES = ("I8", "F8_E4M3")  # dtypes of codes that have a tensor of scales
Float32 = npt.NDArray[np.float32]
Bits16 = npt.NDArray[np.uint16]
Tensors = Mapping[str, StoredTensor]

BF16_INFINITY = 0x7F80  # magnitudes from here on are infinity and NaN
CHUNK = 1 << 18  # elements read and converted at once: the temporaries stay in the L2 cache


class Checkpoint:
    """Tensors of a model, all present and of the right shape. Made by `open`."""

    def __init__(self, tensors: Mapping[str, StoredTensor], surplus: tuple[str, ...]) -> None:
        self._tensors = tensors  # by the model's names
        self.surplus = surplus  # tensors that the model does not use, worth a note to the user

    @classmethod
    def open(cls, directory: Path, spec: ModelSpec, stored: Stored | None = None) -> Checkpoint:
        """Open the files of `directory` and check them against `spec`, and modules that are `stored` quantized.

        Raises CheckpointError for pickle-only directories, missing or contradictory files, and tensors that are
        missing, of another shape than `spec` says, or of a dtype other than BF16, F16 or F32 (other than that of
        `stored`, for its modules).
        """
        expected = tensor_shapes(spec)
        tensors = with_shapes(open_tensors(directory, spec, expected), expected)
        tensors = with_sines(tensors, expected, spec.names, directory)
        if isinstance(stored, PackedForm):
            tensors, stored = with_packed(tensors, stored, expected), None
        if isinstance(stored, MicroscalingForm):
            tensors, stored = with_microscaled(tensors, stored, expected), None
        if isinstance(stored, BlockForm):
            tensors, stored = with_blocks(tensors, stored, expected), None
        scales = {scale_name(f"{module}.weight") for module in stored.modules} if stored else set()
        for name, shape in expected.items():
            if stored and scale_name(name) in scales:
                _check_tensor(directory, tensors, name, shape, stored.dtype)
                _check_scales(directory, tensors, scale_name(name), shape[0])
            else:
                _check_tensor(directory, tensors, name, shape)
        if (head := tied_weight(spec)) is not None and head in tensors:
            _check_tie(tensors, head, embedding_weight(spec))
        # Old checkpoints hold tensors that follow from the rest: rope frequencies, a tied output layer.
        used, names = expected.keys() | scales | {head}, spec.names
        others = (name for name in tensors if name not in used and not name.endswith(names.leftovers))
        surplus = {next((f"{each}*" for each in names.skipped if name.startswith(each)), name) for name in others}
        return cls(tensors, tuple(sorted(surplus)))

    @classmethod
    def of_file(cls, file: SafetensorsFile) -> Checkpoint:
        """Return all tensors of one file, unchecked."""
        return cls({name: PlainTensor(file, name) for name in file.names}, ())

    def has(self, name: str) -> bool:
        """Return whether the files hold the tensor `name`."""
        return name in self._tensors

    def dtype(self, name: str) -> str:
        """Return the dtype in which `name` is stored: BF16, F16 or F32, or one of CODES."""
        return self._tensors[name].dtype

    def is_quantized(self, name: str) -> bool:
        """Return whether `load_codes` and `load_scales` can read it."""
        return self.dtype(name) in CODES

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def load(self, name: str, rows: slice | None = None, columns: slice | None = None) -> Float32:
        """Return a contiguous float32 copy of `name[rows, columns]` (`columns` of two-dimensional tensors only).

        Quantized tensors are dequantized. Raises CheckpointError when a value of the slice is NaN or infinite.
        """
        if self.is_quantized(name):
            return self._dequantized(name, rows, columns)
        out = np.empty(self._shape_of(name, rows, columns), np.float32)
        for part in _chunks(out):
            out[part] = self._read(name, rows, columns, part)
            if not np.isfinite(out[part]).all():
                raise self._not_finite(name, rows, part)
        return out

    def load_bf16(self, name: str, rows: slice | None = None, columns: slice | None = None) -> Bits16:
        """Return a contiguous copy of `name[rows, columns]` as bfloat16 bits; F32 and F16 are rounded, ties to even.

        Raises CheckpointError when a value of the slice is NaN, infinite, or beyond the range of bfloat16.
        """
        values = self._dequantized(name, rows, columns) if self.is_quantized(name) else None
        out = np.empty(self._shape_of(name, rows, columns), np.uint16)
        for part in _chunks(out):
            chunk = self._read(name, rows, columns, part) if values is None else values[part]
            with np.errstate(over="ignore"):  # a value beyond the range becomes infinity, which is refused
                out.view(bfloat16)[part] = chunk
            if not _is_finite(out[part]):
                raise self._not_finite(name, rows, part)
        return out

    def load_codes(self, name: str, rows: slice | None = None, columns: slice | None = None) -> npt.NDArray[np.uint8]:
        """Return the codes of a quantized tensor as contiguous bytes. Raises CheckpointError when a float8 is NaN."""
        codes: npt.NDArray[np.uint8] = np.ascontiguousarray(self._read(name, rows, columns)).view(np.uint8)
        if self.dtype(name) == "F8_E4M3" and ((codes & 0x7F) == 0x7F).any():
            raise self._not_finite(name, rows, slice(0, 0))
        return codes

    def load_scales(self, name: str, rows: slice | None = None) -> Float32:
        """Return the scale of each of `rows`. Raises CheckpointError for one that is negative or not finite."""
        scales = self.load(scale_name(name)).reshape(-1)
        if (scales < 0).any():
            raise CheckpointError(str(self._tensors[name].path), "has a negative scale", scale_name(name))
        num_rows = self.shape(name)[0]
        every: Float32 = np.broadcast_to(scales, (num_rows,))
        return every if rows is None else every[rows]

    def held_by(self, name: str) -> Quantization | None:
        """Return the narrowest format with groups that holds the file's values of a matrix exactly; None = plain."""
        tensor = self._tensors[name]
        return tensor.held_by if isinstance(tensor, GroupedTensor) else None

    def group(self, name: str) -> int:
        """Return how many inputs of a row share a scale; 0 where `load_groups` cannot read the tensor."""
        tensor = self._tensors[name]
        return tensor.group if isinstance(tensor, GroupedTensor) else 0

    def load_groups(self, name: str, rows: slice | None = None, columns: slice | None = None) -> GroupedCodes:
        """Return the codes of `name[rows, columns]` with their scales; `columns` begin and end with a group.

        Raises CheckpointError when a scale, offset or code is NaN or infinite.
        """
        tensor = self._tensors[name]
        assert isinstance(tensor, GroupedTensor)
        asked = range(tensor.shape[0])[rows or slice(None)]
        found = tensor.grouped(asked.start, max(asked.start, asked.stop))
        codes = found.codes if found.codes.dtype == float8_e4m3fn else None
        if not all(np.isfinite(each).all() for each in (found.scales, found.offsets, codes) if each is not None):
            raise self._not_finite(name, rows, slice(0, 0))
        return found if columns is None else found.columns(columns)

    def _dequantized(self, name: str, rows: slice | None, columns: slice | None) -> Float32:
        codes = self.load_codes(name, rows, columns)
        is_int8 = self.dtype(name) == "I8"
        values = codes.view(np.int8).astype(np.float32) if is_int8 else codes.view(float8_e4m3fn).astype(np.float32)
        values *= self.load_scales(name, rows)[:, None]
        return values

    def _shape_of(self, name: str, rows: slice | None, columns: slice | None) -> tuple[int, ...]:
        """Return the shape of `name[rows, columns]`; (1,) for a tensor without dimensions."""
        shape = self.shape(name) or (1,)
        asked = (rows, columns)[: len(shape)]
        return (*(len(range(size)[part or slice(None)]) for size, part in zip(shape, asked, strict=False)), *shape[2:])

    def _read(
        self, name: str, rows: slice | None, columns: slice | None, part: slice = slice(None)
    ) -> npt.NDArray[Any]:
        """Read rows `part` of `name[rows, columns]` from the file."""
        num_rows = self.shape(name)[0] if self.shape(name) else 1
        asked = range(num_rows)[rows or slice(None)][part]
        values = self._tensors[name].rows(asked.start, max(asked.start, asked.stop))
        return values if columns is None else values[:, columns]

    def _not_finite(self, name: str, rows: slice | None, part: slice) -> CheckpointError:
        first = (0 if rows is None else rows.indices(self.shape(name)[0])[0]) + (part.start or 0)
        reason = f"NaN, infinite or too large values at or soon after row {first}"
        return CheckpointError(str(self._tensors[name].path), reason, name)


def _is_finite(bits: Bits16) -> bool:
    """Return whether no bfloat16 is NaN or infinite. `np.isfinite` takes three times as long as this test of bits."""
    return int((bits & 0x7FFF).max(initial=0)) < BF16_INFINITY


def _chunks(array: npt.NDArray[Any]) -> Iterator[slice]:
    """Return slices of the first axis of `array` of about CHUNK elements each."""
    return _chunk_rows(array.shape[0], array.size)


def _chunk_rows(num_rows: int, num_elements: int) -> Iterator[slice]:
    step = max(1, CHUNK * num_rows // max(1, num_elements))
    return (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))


def _check_tensor(
    directory: Path, tensors: Tensors, name: str, shape: tuple[int, ...], dtype: str | None = None
) -> None:
    """Check presence, shape and dtype of a tensor; without a `dtype`, any dtype of values is allowed."""
    if name not in tensors:
        raise CheckpointError(str(directory), "missing from the files of the weights", name)
    tensor = tensors[name]
    file = str(tensor.path)
    if (tensor.shape or (1,)) != shape:
        raise CheckpointError(file, f"has shape {list(tensor.shape)}, config.json makes it {list(shape)}", name)
    if dtype is None and not tensor.has_values:
        raise CheckpointError(file, f"dtype {tensor.dtype} is not supported; use {', '.join(READABLE)}", name)
    if dtype is not None and tensor.dtype != dtype:
        reason = f"has dtype {tensor.dtype}, quantization_config makes it {dtype} as it is not in its ignore list"
        raise CheckpointError(file, reason, name)


def _check_scales(directory: Path, tensors: Tensors, name: str, num_rows: int) -> None:
    """Check that there is one scale for each row, or one for all."""
    if name not in tensors:
        raise CheckpointError(str(directory), "missing from the files of the weights", name)
    shape = tensors[name].shape
    if shape not in {(num_rows, 1), (num_rows,), (1,), (1, 1), ()}:
        reason = f"has shape {list(shape)}, must be [{num_rows}, 1] or [1]"
        raise CheckpointError(str(tensors[name].path), reason, name)
    _check_tensor(directory, tensors, name, shape)


def _check_tie(tensors: Tensors, head_name: str, embedding_name: str) -> None:
    """Refuse an output layer that differs from the embedding to which it is tied: one of the two is wrong."""
    head, embedding = tensors[head_name], tensors[embedding_name]
    is_same = head.shape == embedding.shape and head.dtype == embedding.dtype
    parts = _chunk_rows(head.shape[0], math.prod(head.shape)) if is_same else []
    pairs = ((head.rows(part.start, part.stop), embedding.rows(part.start, part.stop)) for part in parts)
    same = (np.array_equal(first.view(np.uint8), second.view(np.uint8)) for first, second in pairs)
    if not is_same or not all(same):
        reason = f"differs from {embedding_name}, though tie_word_embeddings in config.json says they are one"
        raise CheckpointError(str(head.path), reason, head_name)
