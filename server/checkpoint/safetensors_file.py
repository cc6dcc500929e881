"""One safetensors file: its header is parsed and checked, its data is read piece by piece on request.

The format (https://github.com/huggingface/safetensors): 8 bytes of little-endian header length, the header as JSON,
then the data, which the tensors cover from end to end without holes or overlap. Converts nothing: see `checkpoint.py`.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Annotated, Any, Literal

import ml_dtypes
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from ..errors import CheckpointError
from ..typed_json import JsonError, convert, decode, shown
from .data_file import DataFile
from .json_file import refusals_of

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation
MAX_DIMS = 8
MAX_NAME = 512

Dtype = Literal[
    "F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL", "F8_E4M3", "F8_E5M2",
    "F8_E8M0",
]  # fmt: skip
Natural = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]

# Element type of each safetensors dtype.
VIEWS: dict[Dtype, npt.DTypeLike] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": ml_dtypes.bfloat16,
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}
ITEM_BYTES = {dtype: np.dtype(view).itemsize for dtype, view in VIEWS.items()}


class TensorInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the header. `data_offsets` are its first and last byte, counted from the start of the data."""

    dtype: Dtype
    shape: Annotated[tuple[Natural, ...], Meta(max_length=MAX_DIMS)]
    data_offsets: tuple[Natural, Natural]

    @property
    def begin(self) -> int:
        return self.data_offsets[0]

    @property
    def end(self) -> int:
        return self.data_offsets[1]


class SafetensorsFile:
    """An open safetensors file. Raises CheckpointError when the header and the file do not agree."""

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, DataFile(path)
        num_bytes = self._file.num_bytes
        header = self._read_header(num_bytes)
        self._data_begin = LENGTH_BYTES + len(header)
        self.tensors = _parse_header(path, header, num_bytes - self._data_begin)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    def array(self, name: str) -> npt.NDArray[Any]:
        """Read the whole tensor in its own shape; element types as in `VIEWS`.

        Raises CheckpointError when the file has become shorter, or cannot be read.
        """
        info = self.tensors[name]
        out = np.empty(info.shape, VIEWS[info.dtype])
        self._file.read_into(out, self._data_begin + info.begin, name)
        return out

    def rows(self, name: str, begin: int, end: int) -> npt.NDArray[Any]:
        """Read [begin, end) of the first axis, which must be within the shape. Raises as `array`."""
        info = self.tensors[name]
        out = np.empty((end - begin, *info.shape[1:]), VIEWS[info.dtype])
        skipped = begin * (out.nbytes // max(1, end - begin))
        self._file.read_into(out, self._data_begin + info.begin + skipped, name)
        return out

    def _read_header(self, num_bytes: int) -> bytes:
        file = str(self.path)
        if num_bytes < LENGTH_BYTES:
            raise CheckpointError(file, f"truncated: {num_bytes} bytes, too short for a safetensors file")
        length = int.from_bytes(self._file.bytes_at(0, LENGTH_BYTES), "little")
        if length > MAX_HEADER_BYTES:
            raise CheckpointError(file, f"header of {length} bytes is over the {MAX_HEADER_BYTES} allowed")
        if length > num_bytes - LENGTH_BYTES:
            raise CheckpointError(file, f"truncated: header of {length} bytes in a file of {num_bytes}")
        return self._file.bytes_at(LENGTH_BYTES, length)


def _parse_header(path: Path, header: bytes, data_bytes: int) -> dict[str, TensorInfo]:
    with refusals_of(path):
        entries = decode(header, dict[str, Any])
        entries.pop("__metadata__", None)
        for name in entries:
            if not is_plain(name):
                raise JsonError(f"has a tensor named {shown(name)}")
        tensors = convert(entries, dict[str, TensorInfo])
    for name, info in tensors.items():
        size = math.prod(info.shape) * ITEM_BYTES[info.dtype]
        if size != info.end - info.begin:
            offsets = list(info.data_offsets)
            reason = (
                f"shape {list(info.shape)} of {info.dtype} takes {shown(size)} bytes, data_offsets {offsets} differ"
            )
            raise CheckpointError(str(path), reason, name)
    _check_cover(str(path), tensors, data_bytes)
    return tensors


def _check_cover(file: str, tensors: dict[str, TensorInfo], data_bytes: int) -> None:
    """Check that the tensors cover the data without a hole, from the first byte to the last."""
    in_order = sorted(tensors.items(), key=lambda item: item[1].data_offsets)
    for (_, before), (name, info) in itertools.pairwise(in_order):
        if info.begin < before.end:
            raise CheckpointError(file, f"begins at byte {info.begin}, inside the tensor before it", name)
        if info.begin > before.end:
            raise CheckpointError(file, f"begins at byte {info.begin}, leaving a hole after byte {before.end}", name)
    if in_order and in_order[0][1].begin != 0:
        raise CheckpointError(file, f"begins at byte {in_order[0][1].begin}, leaving a hole before it", in_order[0][0])
    last = in_order[-1][1].end if in_order else 0
    if last > data_bytes:
        name = next(name for name, info in in_order if info.end > data_bytes)
        reason = f"truncated: ends at byte {tensors[name].end} of the data, the file has {data_bytes}"
        raise CheckpointError(file, reason, name)
    if last < data_bytes:
        raise CheckpointError(file, f"{data_bytes - last} bytes after the last tensor belong to no tensor")


def is_plain(name: str) -> bool:
    """Return whether a tensor's name can be shown to a user: of sane length, without control characters."""
    return len(name) <= MAX_NAME and name.isprintable()
