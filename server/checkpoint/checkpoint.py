"""The weights of one checkpoint directory: found, checked against the model's dimensions, and read slice by slice.

Opens safetensors only, whole or sharded; never unpickles and never follows a name out of the directory. Holds no
weights: each `load` reads just the asked slice (whole rows where columns are asked for), a chunk at a time, so that
loading never needs the model twice. May be asked by several threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16, float8_e4m3fn

from server.checkpoint.compressed_tensors import StoredQuantization
from server.checkpoint.json_file import read_json
from server.checkpoint.safetensors_file import SafetensorsFile, is_plain
from server.errors import CheckpointError
from server.models.spec import ModelSpec
from server.models.tensors import EMBEDDING_WEIGHT, LM_HEAD_WEIGHT, is_known_extra, scale_name, tensor_shapes
from server.typed_json import shown

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 32 << 20
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
READABLE = ("F32", "F16", "BF16")
CODES = ("I8", "F8_E4M3")  # with a tensor of scales beside
Float32 = npt.NDArray[np.float32]
Bits16 = npt.NDArray[np.uint16]

BF16_INFINITY = 0x7F80  # magnitudes from here on are infinity and NaN
CHUNK = 1 << 18  # elements read and converted at once: the temporaries stay in the L2 cache


class Checkpoint:
    """Every tensor the model needs, present and of the right shape. Made by `open`."""

    def __init__(self, files: dict[str, SafetensorsFile], surplus: tuple[str, ...]) -> None:
        self._files = files  # by tensor name
        self.surplus = surplus  # tensors in the files that the model has no use for, worth a note to the user

    @classmethod
    def open(cls, directory: Path, spec: ModelSpec, stored: StoredQuantization | None = None) -> Checkpoint:
        """Open the files of `directory` and check them against `spec`, and the modules that are `stored` quantized.

        Raises CheckpointError for pickle-only directories, missing or lying files, and tensors that are missing, of
        another shape than `spec` says, or of a dtype that is not BF16, F16 or F32 (of `stored`, for its modules).
        """
        files = _open_files(directory)
        expected = tensor_shapes(spec)
        scales = {scale_name(f"{module}.weight") for module in stored.modules} if stored else set()
        for name, shape in expected.items():
            if stored and scale_name(name) in scales:
                _check_tensor(directory, files, name, shape, (stored.dtype,))
                _check_scales(directory, files, scale_name(name), shape[0])
            else:
                _check_tensor(directory, files, name, shape, READABLE)
        if spec.is_tied and LM_HEAD_WEIGHT in files:
            _check_tie(files)
        surplus = sorted(
            name for name in files if name not in (expected.keys() | scales) and not is_known_extra(name, spec)
        )
        return cls(files, tuple(surplus))

    def dtype(self, name: str) -> str:
        """The dtype `name` is stored in: BF16, F16 or F32, or one of CODES."""
        return self._files[name].tensors[name].dtype

    def is_quantized(self, name: str) -> bool:
        """Whether `load_codes` and `load_scales` can be asked for it."""
        return self.dtype(name) in CODES

    def shape(self, name: str) -> tuple[int, ...]:
        return self._files[name].tensors[name].shape

    def load(self, name: str, rows: slice | None = None, columns: slice | None = None) -> Float32:
        """A contiguous float32 copy of `name[rows, columns]` (`columns` of two-dimensional tensors only).

        Quantized tensors are given as what they stand for. Raises CheckpointError when a value of the slice is NaN or
        infinite.
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
        """A contiguous copy of `name[rows, columns]` as bfloat16 bits; F32 and F16 are rounded, ties to even.

        Raises CheckpointError when a value of the slice is NaN, infinite, or beyond the range of bfloat16.
        """
        values = self._dequantized(name, rows, columns) if self.is_quantized(name) else None
        out = np.empty(self._shape_of(name, rows, columns), np.uint16)
        for part in _chunks(out):
            chunk = self._read(name, rows, columns, part) if values is None else values[part]
            with np.errstate(over="ignore"):  # what is beyond range becomes infinity, and is refused
                out.view(bfloat16)[part] = chunk
            if not _is_finite(out[part]):
                raise self._not_finite(name, rows, part)
        return out

    def load_codes(self, name: str, rows: slice | None = None, columns: slice | None = None) -> npt.NDArray[np.uint8]:
        """The codes of a quantized tensor as bytes, contiguous; CheckpointError when a float8 is NaN."""
        codes: npt.NDArray[np.uint8] = np.ascontiguousarray(self._read(name, rows, columns)).view(np.uint8)
        if self.dtype(name) == "F8_E4M3" and ((codes & 0x7F) == 0x7F).any():
            raise self._not_finite(name, rows, slice(0, 0))
        return codes

    def load_scales(self, name: str, rows: slice | None = None) -> Float32:
        """The scale of each of the `rows` of a quantized tensor; CheckpointError when one is negative or not finite."""
        scales = self.load(scale_name(name)).reshape(-1)
        if (scales < 0).any():
            raise CheckpointError(str(self._files[name].path), "has a negative scale", scale_name(name))
        num_rows = self.shape(name)[0]
        every: Float32 = np.broadcast_to(scales, (num_rows,))
        return every if rows is None else every[rows]

    def _dequantized(self, name: str, rows: slice | None, columns: slice | None) -> Float32:
        codes = self.load_codes(name, rows, columns)
        is_int8 = self.dtype(name) == "I8"
        values = codes.view(np.int8).astype(np.float32) if is_int8 else codes.view(float8_e4m3fn).astype(np.float32)
        values *= self.load_scales(name, rows)[:, None]
        return values

    def _shape_of(self, name: str, rows: slice | None, columns: slice | None) -> tuple[int, ...]:
        """The shape of `name[rows, columns]`; of a tensor without dimensions (1,)."""
        shape = self.shape(name) or (1,)
        asked = (rows, columns)[: len(shape)]
        return (*(len(range(size)[part or slice(None)]) for size, part in zip(shape, asked, strict=False)), *shape[2:])

    def _read(
        self, name: str, rows: slice | None, columns: slice | None, part: slice = slice(None)
    ) -> npt.NDArray[Any]:
        """Rows `part` of `name[rows, columns]`, read from the file."""
        file = self._files[name]
        if not self.shape(name):
            return np.atleast_1d(file.array(name))
        asked = range(self.shape(name)[0])[rows or slice(None)][part]
        values = file.rows(name, asked.start, max(asked.start, asked.stop))
        return values if columns is None else values[:, columns]

    def _not_finite(self, name: str, rows: slice | None, part: slice) -> CheckpointError:
        first = (0 if rows is None else rows.indices(self.shape(name)[0])[0]) + (part.start or 0)
        reason = f"NaN, infinite or too large values at or soon after row {first}"
        return CheckpointError(str(self._files[name].path), reason, name)


def _is_finite(bits: Bits16) -> bool:
    """Whether no bfloat16 is NaN or infinite; on the bits, where `np.isfinite` takes three times as long."""
    return int((bits & 0x7FFF).max(initial=0)) < BF16_INFINITY


def _chunks(array: npt.NDArray[Any]) -> Iterator[slice]:
    """Slices of the first axis of `array` of about CHUNK elements each."""
    return _chunk_rows(array.shape[0], array.size)


def _chunk_rows(num_rows: int, num_elements: int) -> Iterator[slice]:
    step = max(1, CHUNK * num_rows // max(1, num_elements))
    return (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))


def _open_files(directory: Path) -> dict[str, SafetensorsFile]:
    """Each tensor's name and the file that holds it."""
    if (directory / WEIGHTS).exists():
        file = SafetensorsFile(directory / WEIGHTS)
        return dict.fromkeys(file.names, file)
    if (directory / INDEX).exists():
        return _open_shards(directory)
    pickles = sorted(path.name for path in directory.glob("*") if path.suffix in PICKLES)
    if pickles:
        reason = f"holds only pickled weights ({', '.join(pickles[:4])}), which can run code; convert to safetensors"
        raise CheckpointError(str(directory), reason)
    raise CheckpointError(str(directory), f"has neither {WEIGHTS} nor {INDEX}")


class _Index(msgspec.Struct):
    """What lies in which shard."""

    weight_map: dict[str, str]  # names of tensors, and of files beside the index


def read_weight_map(directory: Path) -> dict[str, str]:
    """The name of the file that holds each tensor of a sharded checkpoint. Raises CheckpointError."""
    weight_map = read_json(directory / INDEX, MAX_INDEX_BYTES, _Index).weight_map
    for name, shard in weight_map.items():
        if not is_plain(name):
            raise CheckpointError(str(directory / INDEX), f"weight_map has a tensor named {shown(name)}")
        if not _is_inside(shard):
            reason = f"shard {shown(shard)} is not the name of a .safetensors file in the checkpoint's directory"
            raise CheckpointError(str(directory / INDEX), reason, name)
    return weight_map


def _open_shards(directory: Path) -> dict[str, SafetensorsFile]:
    weight_map = read_weight_map(directory)
    shards = {shard: SafetensorsFile(directory / shard) for shard in dict.fromkeys(weight_map.values())}
    for name, shard in weight_map.items():
        if name not in shards[shard].tensors:
            raise CheckpointError(str(directory / shard), f"missing, though {INDEX} says it is here", name)
    return {name: shards[shard] for name, shard in weight_map.items()}


def _is_inside(shard: str) -> bool:
    """Whether a shard's name stays inside its directory. Links may lead out: the hub's cache is made of them."""
    if not shard.endswith(".safetensors") or "\\" in shard or "\0" in shard:
        return False
    path = PurePosixPath(shard)
    return not path.is_absolute() and ".." not in path.parts


def _check_tensor(
    directory: Path,
    files: dict[str, SafetensorsFile],
    name: str,
    shape: tuple[int, ...],
    dtypes: tuple[str, ...],
) -> None:
    if name not in files:
        raise CheckpointError(str(directory), "missing from the safetensors files", name)
    info, file = files[name].tensors[name], str(files[name].path)
    if info.shape != shape:
        raise CheckpointError(file, f"has shape {list(info.shape)}, config.json makes it {list(shape)}", name)
    if info.dtype not in dtypes and dtypes == READABLE:
        raise CheckpointError(file, f"dtype {info.dtype} is not supported; use {', '.join(READABLE)}", name)
    if info.dtype not in dtypes:
        reason = f"has dtype {info.dtype}, quantization_config makes it {dtypes[0]} as it is not in its ignore list"
        raise CheckpointError(file, reason, name)


def _check_scales(directory: Path, files: dict[str, SafetensorsFile], name: str, num_rows: int) -> None:
    """One scale for each row, or one for all."""
    if name not in files:
        raise CheckpointError(str(directory), "missing from the safetensors files", name)
    shape = files[name].tensors[name].shape
    if shape not in {(num_rows, 1), (num_rows,), (1,), (1, 1), ()}:
        reason = f"has shape {list(shape)}, must be [{num_rows}, 1] or [1]"
        raise CheckpointError(str(files[name].path), reason, name)
    _check_tensor(directory, files, name, shape, READABLE)


def _check_tie(files: dict[str, SafetensorsFile]) -> None:
    """Refuse an output layer that differs from the embedding it is said to be tied to: one of the two is wrong."""
    head, embedding = files[LM_HEAD_WEIGHT], files[EMBEDDING_WEIGHT]
    shape, num_rows = head.tensors[LM_HEAD_WEIGHT].shape, embedding.tensors[EMBEDDING_WEIGHT].shape[0]
    is_same = (
        shape == embedding.tensors[EMBEDDING_WEIGHT].shape
        and head.tensors[LM_HEAD_WEIGHT].dtype == embedding.tensors[EMBEDDING_WEIGHT].dtype
    )
    parts = [(part.start, part.stop) for part in _chunk_rows(num_rows, math.prod(shape))] if is_same else []
    same = (
        np.array_equal(
            head.rows(LM_HEAD_WEIGHT, *part).view(np.uint8), embedding.rows(EMBEDDING_WEIGHT, *part).view(np.uint8)
        )
        for part in parts
    )
    if not is_same or not all(same):
        reason = f"differs from {EMBEDDING_WEIGHT}, though tie_word_embeddings in config.json says they are one"
        raise CheckpointError(str(files[LM_HEAD_WEIGHT].path), reason, LM_HEAD_WEIGHT)
