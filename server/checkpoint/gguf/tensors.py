"""Tensors of GGUF files under the model's own names, with the values of its own checkpoint.

The package `gguf` maps the names. Four changes that conversion to GGUF makes are undone: rows of query and key heads in
the order of rotary pairs, queries of all heads before the keys where the model has them head by head, norms with 1
added, and the experts of a layer in one tensor. Rows are converted to float32 on request; nothing is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...config.formats import Quantization
from ...models.decoder import decoder_graph
from ...models.graph import linears
from ...models.spec import ModelSpec
from ..stored import GroupedCodes
from .architecture import Architecture
from .architectures import architecture_of
from .files import Entry, GgufFiles
from .groups import GROUP, GROUPED, grouped
from .types import Bytes, Float32

EXPERT = re.compile(r"(\.experts)\.(\d+)\.")
ROTATED = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")
FUSED = re.compile(r"blk\.\d+\.attn_qkv\.(weight|bias)")
NORM = "norm.weight"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of the model: rows [first_row, first_row + shape[0]) of a tensor in a file."""

    entry: Entry
    name: str  # in the file
    shape: tuple[int, ...]
    first_row: int = 0
    num_heads: int = 0  # heads whose rows are in rotary pairs, or KV heads in runs; 0 = rows are in the model's order
    num_queries: int = 0  # of each KV head, with runs of all queries, keys and values; 0 = rotary pairs
    is_turned: bool = False  # the model has [inputs, outputs], the file [outputs, inputs]
    shift: float = 0.0  # added to the file's values

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
            whole = self.entry.info.type.values(self.entry.bytes_of(self.first_row, self.first_row + 1, self.name))
            values: Float32 = whole[0, self._places(0, self.shape[0])[begin:end]] + np.float32(self.shift)
            return values
        if self.is_turned:
            whole = self.entry.info.type.values(self._bytes(0, self.shape[1]))
            return np.ascontiguousarray(whole[:, begin:end].T)
        return self.entry.info.type.values(self._bytes(begin, end)).reshape(end - begin, *self.shape[1:])

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
        return GROUP if self.dtype in GROUPED and len(self.shape) > 1 and not self.is_turned else 0

    def grouped(self, begin: int, end: int) -> GroupedCodes:
        """Return the codes of rows [begin, end)."""
        return grouped(self.dtype, self._bytes(begin, end))

    def _bytes(self, begin: int, end: int) -> Bytes:
        """Return the bytes of the model's rows [begin, end). The file is read once, over all rows in between."""
        places = self._places(begin, end)
        if begin == end:
            return self.entry.bytes_of(0, 0, self.name)
        first, last = int(places.min()), int(places.max()) + 1
        rows = self.entry.bytes_of(self.first_row + first, self.first_row + last, self.name)
        return rows if not self.num_heads else rows[places - first]

    def _places(self, begin: int, end: int) -> npt.NDArray[np.intp]:
        """Return the file's rows of the model's rows.

        Rows j and d / 2 + j of a head of d rows in pairs are the rows 2j and 2j + 1 of the file. In runs, the queries
        of a KV head are in the run of queries, its key and value in the runs of keys and values.
        """
        rows = np.arange(begin, end)
        if not self.num_heads:
            return rows
        size = self.shape[0] // self.num_heads
        head, row = rows // size, rows % size
        if self.num_queries:
            width = size // (self.num_queries + 2)
            part = np.maximum(row // width - self.num_queries + 1, 0)  # 0: a query, 1: the key, 2: the value
            keys = (self.num_queries + part - 1) * self.num_heads * width + head * width + row % width
            return np.where(part == 0, head * self.num_queries * width + row, keys)
        return head * size + row % (size // 2) * 2 + row // (size // 2)


def model_tensors(files: GgufFiles, spec: ModelSpec, expected: Mapping[str, tuple[int, ...]]) -> dict[str, GgufTensor]:
    """Return the expected tensors that the files have, and surplus tensors under the files' names."""
    architecture = architecture_of(files)
    names = _names(architecture, spec.num_layers, expected)
    there = {name: stored for name, stored in names.items() if stored in files.entries}
    found = {name: _tensor(files, architecture, spec, name, stored) for name, stored in there.items()}
    turned = {part.weight for linear in linears(decoder_graph(spec)) for part in linear.parts if part.is_transposed}
    for name in turned & found.keys():
        found[name] = replace(found[name], shape=found[name].shape[::-1], is_turned=True)
    for name, tensor in found.items():  # convolutions of a channel, [channels, 1, taps], have two dimensions in a file
        if len(expected[name]) > len(tensor.shape) and (*tensor.shape[:1], 1, *tensor.shape[1:]) == expected[name]:
            found[name] = replace(tensor, shape=expected[name])
    used = {tensor.name for tensor in found.values()}
    rest = (name for name in files.entries if name not in used and not architecture.is_read_with_config(name))
    return found | {name: GgufTensor(files.entries[name], name, files.entries[name].info.shape) for name in rest}


def _names(row: Architecture, num_layers: int, expected: Iterable[str]) -> dict[str, str]:
    """Return the files' name of each tensor of the model that has one."""
    import gguf

    number = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}[row.name]
    mapping = gguf.get_tensor_name_map(number, num_layers)
    names = {name: mapping.get_name(_known(EXPERT.sub(r"\1.", name), row), (".weight", ".bias")) for name in expected}
    # A tensor that is neither weight nor bias in the model, such as attention's sinks, is a weight in the file.
    return {
        name: found if found.endswith((".weight", ".bias")) else f"{found}.weight"
        for name, found in names.items()
        if found is not None
    }


def _known(name: str, row: Architecture) -> str:
    """Return a name in the words of the package."""
    for ours, known in row.words.items():
        name = name.replace(ours, known)
    return name


def _tensor(files: GgufFiles, row: Architecture, spec: ModelSpec, name: str, stored: str) -> GgufTensor:
    entry = files.entries[stored]
    shape, first_row, num_heads, num_queries = entry.info.shape, 0, 0, 0
    if (expert := EXPERT.search(name)) is not None and len(shape) > 1:
        _, *rest = shape
        shape, first_row = tuple(rest), int(expert[2]) * (rest[0] if len(rest) > 1 else 1)
    if row.has_rotary_pairs and (part := ROTATED.fullmatch(stored)):
        num_heads = spec.num_heads if part[1] == "q" else spec.num_kv_heads
        if shape[0] % (2 * num_heads):
            raise files.error(f"has {shape[0]} rows, which {num_heads} heads do not divide into pairs", stored)
    if row.has_heads_apart and FUSED.fullmatch(stored):
        num_heads, num_queries = spec.num_kv_heads, spec.num_heads // spec.num_kv_heads
        if shape[0] % ((num_queries + 2) * num_heads):
            raise files.error(f"has {shape[0]} rows, which are not q, k and v of {spec.num_heads} heads", stored)
    shift = -row.norm_shift if stored.endswith(NORM) else 0.0
    return GgufTensor(entry, stored, shape, first_row, num_heads, num_queries, shift=shift)
