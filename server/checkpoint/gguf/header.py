"""Header of one GGUF file: metadata and the table of tensors, parsed and checked.

The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), all little-endian: magic, version, number of
tensors, number of metadata values; the values, each a key, a type and its content; the table, for each tensor a name,
dimensions (fastest first), a type and an offset; then, aligned, the data. Every count is checked against the rest of
the file and against a limit before anything of that size is read or allocated. Reads no data of tensors.
"""

from __future__ import annotations

import io
import itertools
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from ...errors import CheckpointError
from ...host.regular_file import open_regular, why_unreadable
from ...typed_json import shown
from ..safetensors_file import is_plain
from .types import BlockType, block_type

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # they differ only in that a file of version 3 may be big-endian
MAX_HEADER_BYTES = 1 << 28  # a vocabulary of 262,144 tokens with its scores and types takes 8 MB
MAX_VALUES = 1 << 14
MAX_TENSORS = 1 << 17
MAX_STRINGS = 1 << 22  # in all arrays together
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32
ALIGNMENT = "general.alignment"

STRING, ARRAY, BOOL = 8, 9, 7
NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}

Array = npt.NDArray[np.generic]
V = TypeVar("V")
Value = bool | int | float | str | list[str] | Array


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the table. `begin` is a byte of the file; the shape has the outputs first."""

    type: BlockType
    shape: tuple[int, ...]
    begin: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, whose values are contiguous."""
        return self.shape[-1] // self.type.block_size * self.type.block_bytes

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.row_bytes


@dataclass(frozen=True, slots=True)
class Header:
    """Metadata of a file, and its tensors."""

    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]
    num_bytes: int  # of the header itself


def read_header(path: Path) -> Header:
    """Read the header of the file at `path`.

    Raises CheckpointError for a file that is not GGUF of a known version, is cut short, or has counts, lengths or
    dimensions that it cannot hold, duplicate names, unknown types, or tensors that overlap or are not aligned.
    """
    try:
        with io.BufferedReader(open_regular(path)) as file:
            num_bytes = file.seek(0, 2)
            file.seek(0)
            return _Parser(path, file, num_bytes).header()
    except OSError as error:
        raise CheckpointError(str(path), why_unreadable(error)) from None


def is_gguf(path: Path) -> bool:
    """Return whether the file at `path` begins with GGUF's magic, or has its suffix."""
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC or path.suffix == ".gguf"
    except (OSError, ValueError):  # not a valid path
        return False


class _Parser:
    """Parser that reads a header once, from its beginning to its end."""

    def __init__(self, path: Path, file: BinaryIO, num_bytes: int) -> None:
        self._path, self._file, self._num_bytes = path, file, num_bytes
        self._place = self._num_strings = 0
        self._doing = "the header"

    def header(self) -> Header:
        self._begin()
        num_tensors, num_values = self._count(MAX_TENSORS, "tensors"), self._count(MAX_VALUES, "metadata values")
        metadata = dict(self._unique(self._values(num_values), "metadata key"))
        table = dict(self._unique(self._table(num_tensors), "tensor"))
        alignment = self._alignment(metadata)
        data = -(-self._place // alignment) * alignment
        tensors = {
            name: TensorInfo(kind, shape, data + self._offset(name, offset, alignment))
            for name, (kind, shape, offset) in table.items()
        }
        self._check_places(tensors)
        return Header(metadata, tensors, self._place)

    def _begin(self) -> None:
        if (magic := self._take(4)) != MAGIC:
            raise self._error(f"begins with {shown(magic)}, a GGUF file with {MAGIC!r}")
        version = self._number("<I")
        if version not in VERSIONS and version & 0xFFFF == 0:
            raise self._error("is big-endian, which is not supported")
        if version not in VERSIONS:
            raise self._error(f"is of version {version}; read are {' and '.join(map(str, VERSIONS))}")

    def _values(self, count: int) -> Iterator[tuple[str, Value]]:
        for i in range(count):
            self._doing = f"metadata value {i}"
            key = self._text()
            self._require_plain(key, "metadata key")
            self._doing = f"metadata {key}"
            yield key, self._value(int(self._number("<I")))

    def _value(self, kind: int) -> Value:
        if kind == STRING:
            return self._text()
        if kind == ARRAY:
            return self._array(int(self._number("<I")))
        if kind == BOOL:
            return bool(self._numbers("<u1", 1)[0])
        if kind in NUMBERS:
            value: int | float = self._numbers(NUMBERS[kind], 1)[0].item()
            return value
        raise self._error(f"{self._doing} has type {kind}, which the format does not have")

    def _array(self, kind: int) -> Value:
        count = int(self._number("<Q"))
        if kind == STRING:
            self._num_strings += count
            if self._num_strings > MAX_STRINGS:
                raise self._error(f"{self._doing} has {count} strings, over the {MAX_STRINGS} allowed in a file")
            return [self._text() for _ in range(count)]
        if kind == BOOL:
            flags: Array = self._numbers("<u1", count) != 0
            return flags
        if kind in NUMBERS:
            return self._numbers(NUMBERS[kind], count)
        raise self._error(f"{self._doing} is an array of type {kind}: read are numbers and strings")

    def _table(self, count: int) -> Iterator[tuple[str, tuple[BlockType, tuple[int, ...], int]]]:
        for i in range(count):
            self._doing = f"entry {i} of the tensors"
            name = self._text()
            self._require_plain(name, "tensor")
            self._doing = f"tensor {name}"
            num_dims = int(self._number("<I"))
            if not 1 <= num_dims <= MAX_DIMS:
                raise self._error(f"has {num_dims} dimensions, 1 to {MAX_DIMS} are allowed", name)
            shape = tuple(int(self._number("<Q")) for _ in range(num_dims))[::-1]
            kind, offset = int(self._number("<I")), int(self._number("<Q"))
            yield name, (self._block_type(name, kind, shape), shape, offset)

    def _block_type(self, name: str, kind: int, shape: tuple[int, ...]) -> BlockType:
        found = block_type(kind)
        if found is None:
            raise self._error(f"has type {kind}, which is not known", name)
        if not all(shape) or shape[-1] % found.block_size:
            reason = f"has shape {list(shape)}, of {found.name} the last is a multiple of {found.block_size}, none is 0"
            raise self._error(reason, name)
        row = shape[-1] // found.block_size * found.block_bytes
        if (size := math.prod(shape[:-1]) * row) > self._num_bytes:
            reason = f"shape {list(shape)} of {found.name} takes {shown(size)} bytes, the file has {self._num_bytes}"
            raise self._error(reason, name)
        return found

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        value = metadata.get(ALIGNMENT, DEFAULT_ALIGNMENT)
        if not isinstance(value, int) or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
            raise self._error(f"{ALIGNMENT} is {shown(value)}: must be a power of two, at most {MAX_ALIGNMENT}")
        return value

    def _offset(self, name: str, offset: int, alignment: int) -> int:
        if offset % alignment:
            raise self._error(f"begins at byte {offset} of the data, no multiple of the alignment {alignment}", name)
        return offset

    def _check_places(self, tensors: Mapping[str, TensorInfo]) -> None:
        """Check that each tensor is inside of the file and outside of the others."""
        in_order = sorted(tensors.items(), key=lambda item: item[1].begin)
        for name, info in in_order:
            if info.begin + info.num_bytes > self._num_bytes:
                end = info.begin + info.num_bytes
                raise self._error(f"truncated: ends at byte {end}, the file has {self._num_bytes}", name)
        for (before, first), (name, second) in itertools.pairwise(in_order):
            if second.begin < first.begin + first.num_bytes:
                raise self._error(f"begins at byte {second.begin}, inside of tensor {before}", name)

    def _unique(self, pairs: Iterator[tuple[str, V]], what: str) -> Iterator[tuple[str, V]]:
        seen: set[str] = set()
        for name, value in pairs:
            if name in seen:
                raise self._error(f"{what} {name} appears twice")
            seen.add(name)
            yield name, value

    def _require_plain(self, name: str, what: str) -> None:
        if not name or not is_plain(name):
            raise self._error(f"has a {what} named {shown(name)}")

    def _count(self, limit: int, what: str) -> int:
        count = int(self._number("<Q"))
        if count > limit:
            raise self._error(f"has {count} {what}, {limit} are allowed")
        return count

    def _text(self) -> str:
        try:
            return self._take(int(self._number("<Q"))).decode()
        except UnicodeDecodeError as error:
            raise self._error(f"{self._doing} is not UTF-8: {error.reason}") from None

    def _numbers(self, dtype: str, count: int) -> Array:
        return np.frombuffer(self._take(count * np.dtype(dtype).itemsize), dtype)

    def _number(self, form: str) -> int:
        number: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return number

    def _take(self, count: int) -> bytes:
        end = self._place + count
        if end > self._num_bytes:
            raise self._error(
                f"truncated in {self._doing}: up to byte {end} are needed, the file has {self._num_bytes}"
            )
        if end > MAX_HEADER_BYTES:
            raise self._error(f"{self._doing} ends at byte {end}, beyond the {MAX_HEADER_BYTES} of a header")
        self._place = end
        taken = self._file.read(count)
        if len(taken) != count:
            raise self._error("truncated: has become shorter while it was read")
        return taken

    def _error(self, reason: str, tensor: str | None = None) -> CheckpointError:
        return CheckpointError(str(self._path), reason, tensor)
