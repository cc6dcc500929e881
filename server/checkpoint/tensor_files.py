"""Tensors of a checkpoint's directory by name, from safetensors or GGUF files.

Opens safetensors only, whole or sharded, or the GGUF file that the directory was made for; never unpickles and never
follows a name out of the directory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import numpy.typing as npt

from ..errors import CheckpointError
from ..models.families.text_part import name_in_text
from ..models.spec import ModelSpec
from ..models.tensors import embedding_weight, tied_weight
from ..typed_json import shown
from .fused_experts import with_experts
from .gguf.directory import linked_eyes, linked_parts
from .gguf.files import open_gguf
from .gguf.pictures import picture_tensors
from .gguf.tensors import model_tensors
from .json_file import read_json
from .safetensors_file import SafetensorsFile, is_plain
from .stored import StoredTensor

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 32 << 20
READABLE = ("F32", "F16", "BF16")  # dtypes of values
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


@dataclass(frozen=True, slots=True)
class PlainTensor:
    """A tensor of a safetensors file, unchanged."""

    file: SafetensorsFile
    name: str

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def dtype(self) -> str:
        return self.file.tensors[self.name].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.file.tensors[self.name].shape

    @property
    def has_values(self) -> bool:
        return self.dtype in READABLE

    def rows(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Return [begin, end) of the first axis; one row for a scalar."""
        return self.file.rows(self.name, begin, end) if self.shape else self.file.array(self.name).reshape(1)


def open_tensors(
    directory: Path, spec: ModelSpec, expected: Mapping[str, tuple[int, ...]]
) -> Mapping[str, StoredTensor]:
    """Return the directory's tensors by the model's names, and surplus tensors by their own names.

    Raises CheckpointError where there are no weights, or where files contradict their headers.
    """
    if (eyes := linked_eyes(directory)) and expected.keys() & (found := picture_tensors(open_gguf(eyes))).keys():
        return found
    if parts := linked_parts(directory):
        return model_tensors(open_gguf(parts), spec, expected)
    return with_experts(by_names_of(spec, open_safetensors(directory)), expected, spec.names.fused)


def by_names_of(spec: ModelSpec, tensors: dict[str, PlainTensor]) -> dict[str, PlainTensor]:
    """Return tensors by the model's names of today. A file saved without an output layer has names without the prefix.

    Tensors of the text's part of a larger model get the names that files of the text alone have.
    """
    tensors = {name_in_text(name): tensor for name, tensor in tensors.items()}
    embedding, prefix, today = embedding_weight(spec), spec.names.prefix, dict(spec.names.old_names)
    if embedding in tensors or embedding.removeprefix(prefix) not in tensors:
        prefix = ""
    outer = (tied_weight(spec), *today.values())

    def name_of(name: str) -> str:
        name = today.get(name, name)
        for old, new in spec.names.old_endings:
            name = name.removesuffix(old) + new if name.endswith(old) else name
        return name if name in outer else prefix + name

    return {name_of(name): tensor for name, tensor in tensors.items()}


def open_safetensors(directory: Path) -> dict[str, PlainTensor]:
    """Return the tensors of the directory's safetensors files. Raises CheckpointError for missing or broken files."""
    if os.path.lexists(directory / WEIGHTS):
        file = SafetensorsFile(directory / WEIGHTS)
        return {name: PlainTensor(file, name) for name in file.names}
    if os.path.lexists(directory / INDEX):
        return _open_shards(directory)
    pickles = sorted(path.name for path in directory.glob("*") if path.suffix in PICKLES)
    if pickles:
        reason = f"holds only pickled weights ({', '.join(pickles[:4])}), which can run code; convert to safetensors"
        raise CheckpointError(str(directory), reason)
    raise CheckpointError(str(directory), f"has neither {WEIGHTS} nor {INDEX}")


class _Index(msgspec.Struct):
    """Shard of each tensor."""

    weight_map: dict[str, str]  # names of tensors, and of files beside the index


def read_weight_map(directory: Path) -> dict[str, str]:
    """Return the file name of each tensor of a sharded checkpoint. Raises CheckpointError."""
    weight_map = read_json(directory / INDEX, MAX_INDEX_BYTES, _Index).weight_map
    for name, shard in weight_map.items():
        if not is_plain(name):
            raise CheckpointError(str(directory / INDEX), f"weight_map has a tensor named {shown(name)}")
        if not _is_inside(shard):
            reason = f"shard {shown(shard)} is not the name of a .safetensors file in the checkpoint's directory"
            raise CheckpointError(str(directory / INDEX), reason, name)
    return weight_map


def _open_shards(directory: Path) -> dict[str, PlainTensor]:
    weight_map = read_weight_map(directory)
    shards = {shard: SafetensorsFile(directory / shard) for shard in dict.fromkeys(weight_map.values())}
    for name, shard in weight_map.items():
        if name not in shards[shard].tensors:
            raise CheckpointError(str(directory / shard), f"missing, though {INDEX} says it is here", name)
    return {name: PlainTensor(shards[shard], name) for name, shard in weight_map.items()}


def _is_inside(shard: str) -> bool:
    """Return whether a shard's name stays inside its directory. Links may lead out, as in the hub's cache."""
    if not shard.endswith(".safetensors") or "\\" in shard or "\0" in shard:
        return False
    path = PurePosixPath(shard)
    return not path.is_absolute() and ".." not in path.parts
