"""A model in one GGUF file or several: one table of tensors and one set of metadata."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CheckpointError
from ...models.config_values import MAX_LAYERS
from ...typed_json import shown
from ..data_file import DataFile
from .header import Header, TensorInfo, Value, read_header
from .types import Bytes, Float32

PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
MAX_PARTS = 1024
ARCHITECTURE = "general.architecture"
COUNT, NUMBER, NUM_TENSORS = "split.count", "split.no", "split.tensors.count"


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of one of the files."""

    file: DataFile
    info: TensorInfo

    def bytes_of(self, begin: int, end: int, name: str) -> Bytes:
        """Read rows [begin, end) of the tensor, seen as a matrix, unchanged: [rows, bytes]."""
        out = np.empty((end - begin, self.info.row_bytes), np.uint8)
        self.file.read_into(out, self.info.begin + begin * self.info.row_bytes, name)
        return out


@dataclass(frozen=True, slots=True)
class GgufFiles:
    """Tensors of all files, and the metadata of the first, which is the model's."""

    path: Path  # of the first file
    metadata: Mapping[str, Value]
    entries: Mapping[str, Entry]

    def vector(self, name: str) -> Float32 | None:
        """Return all values of a small tensor in one row, None when there is no such tensor."""
        entry = self.entries.get(name)
        if entry is None:
            return None
        if not entry.info.type.is_readable:
            raise CheckpointError(str(self.path), f"has type {entry.info.type.name}, which is not supported", name)
        rows = entry.info.num_bytes // entry.info.row_bytes
        return entry.info.type.values(entry.bytes_of(0, rows, name)).reshape(-1)

    def number(self, key: str) -> Any:
        """Return the architecture's number of this key, None where there is none. A list by layer must repeat it."""
        key = self._key(key)
        value = self.metadata.get(key)
        if isinstance(value, np.ndarray):
            if not value.size or (value != value[0]).any():
                raise self.error(f"{key} is {shown(value.tolist())}: layers that differ in it are not supported")
            value = value[0].item()
        if isinstance(value, float) and math.isfinite(value):
            return decimals(np.array([value], np.float32))[0]
        if value is not None and not isinstance(value, int):
            raise self.error(f"{key} is {shown(value)}: must be a finite number")
        return value

    def by_layer(self, key: str, layers: int) -> list[int]:
        """Return the architecture's whole number of this key for each layer. The file has a list, or one for all."""
        key = self._key(key)
        value = self.metadata.get(key)
        found: list[Any] = value.tolist() if isinstance(value, np.ndarray) else [value] * min(layers, MAX_LAYERS)
        if len(found) != layers or not all(isinstance(each, int) and each >= 0 for each in found):
            raise self.error(f"{key} is {shown(value)}: must be one whole number for each of {layers} layers")
        return found

    def states(self, key: str) -> bool:
        """Return whether the metadata has this key of the architecture."""
        return self._key(key) in self.metadata

    def _key(self, key: str) -> str:
        return f"{self.metadata.get(ARCHITECTURE)}.{key}"

    def error(self, reason: str, tensor: str | None = None) -> CheckpointError:
        """Return an error that names the first file."""
        return CheckpointError(str(self.path), reason, tensor)


def decimals(values: Float32) -> list[float]:
    """Return each value as the shortest decimal that rounds to it, which is the spelling of a config.json."""
    return [float(str(value)) for value in values]


def parts_of(path: Path) -> list[Path]:
    """Return the paths of all files of a split model by the name of one: `name-00001-of-00003.gguf` and so on."""
    match = PART.fullmatch(path.name)
    if match is None:
        return [path]
    stem, count = match[1], int(match[3])
    if not 1 <= int(match[2]) <= count <= MAX_PARTS:
        raise CheckpointError(str(path), f"is not part 1 to {count} of at most {MAX_PARTS}, as its name says")
    return [path.with_name(f"{stem}-{part:05}-of-{count:05}.gguf") for part in range(1, count + 1)]


def open_gguf(parts: list[Path]) -> GgufFiles:
    """Open the model that is split over these files, in order.

    Raises CheckpointError where `read_header` does, for files that are missing or belong to different models, and for
    tensors that are in two files.
    """
    headers = [read_header(path) for path in parts]
    entries: dict[str, Entry] = {}
    for number, (path, header) in enumerate(zip(parts, headers, strict=True)):
        _check_part(path, header, number, len(parts))
        file = DataFile(path)
        for name, info in header.tensors.items():
            if name in entries:
                raise CheckpointError(str(path), f"is in {entries[name].file.path.name} too", name)
            entries[name] = Entry(file, info)
    stated = headers[0].metadata.get(NUM_TENSORS, len(entries))
    if stated != len(entries):
        raise CheckpointError(str(parts[0]), f"{NUM_TENSORS} is {shown(stated)}: the parts have {len(entries)}")
    return GgufFiles(parts[0], headers[0].metadata, entries)


def _check_part(path: Path, header: Header, number: int, count: int) -> None:
    """Check that a file's metadata agrees with its number and with the number of files."""
    for key, expected in ((COUNT, count), (NUMBER, number)):
        found = header.metadata.get(key, expected if count == 1 else None)
        if found != expected and (count, key, found) != (1, COUNT, 0):  # 0 in files that were joined
            raise CheckpointError(str(path), f"{key} is {shown(found)}: its name makes it {expected}")
