"""Tensors of GGUF files with the values of the model's own checkpoint, read by rows.

A matrix that conversion takes apart is put together again as it is read. Source: llama.cpp's conversion of DeepSeek
(kv_b_proj), Granite (shared_mlp) and Qwen3-Next (in_proj_qkvz).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...config.formats import Quantization
from ...models.state_layer import GatedDeltaNetSpec
from ..stored import GroupedCodes
from .files import Entry, GgufFiles
from .groups import GROUP, GROUPED, grouped
from .orders import Order
from .types import Bytes, Float32

MODULE = re.compile(r".*?\.(\d+)\.(.+)\.weight")
LATENT, QKVZ = "self_attn.kv_b_proj", "linear_attn.in_proj_qkvz"
# Modules of the model, each with the file's names of its parts. A later row is for files without the first.
PARTS = (
    (LATENT, ("attn_k_b", "attn_v_b")),
    (QKVZ, ("attn_qkv", "attn_gate")),
    ("shared_mlp.input_linear", ("ffn_gate_shexp", "ffn_up_shexp")),
    ("shared_mlp.input_linear", ("ffn_gate", "ffn_up")),
    ("shared_mlp.output_linear", ("ffn_down",)),
)


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
        if self.dtype not in GROUPED or len(self.shape) == 1 or self.is_turned:
            return 0
        is_whole = self.columns is None or bool((self.columns.reshape(-1, GROUP)[:, 0] % GROUP == 0).all())
        return GROUP if is_whole else 0

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


class Part(NamedTuple):
    """Rows of a file's matrix: from `first` on, `size` for each head."""

    tensor: GgufTensor
    first: int
    size: int
    inputs: int = 0  # rows of a head that is stored [inputs, outputs]; 0 = it is stored [outputs, inputs]

    def rows(self, head: int, begin: int, end: int) -> Float32:
        """Return outputs [begin, end) of a head."""
        if self.inputs:
            whole = self.tensor.rows(head * self.inputs, (head + 1) * self.inputs)
            return np.ascontiguousarray(whole[:, begin:end].T)
        at = self.first + head * self.size
        return self.tensor.rows(at + begin, at + end)

    def grouped(self, head: int, begin: int, end: int) -> GroupedCodes:
        """Return the codes of outputs [begin, end) of a head."""
        at = self.first + head * self.size
        return self.tensor.grouped(at + begin, at + end)


@dataclass(frozen=True, slots=True)
class JoinedTensor:
    """A matrix with the rows of the first head of each part in turn, then those of the second head, and so on."""

    parts: tuple[Part, ...]
    num_heads: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.num_heads * sum(part.size for part in self.parts), *self.parts[-1].tensor.shape[1:]

    @property
    def path(self) -> Path:
        return self.parts[0].tensor.path

    @property
    def dtype(self) -> str:
        return self.parts[0].tensor.dtype

    @property
    def has_values(self) -> bool:
        return all(part.tensor.has_values for part in self.parts)

    def rows(self, begin: int, end: int) -> Float32:
        """Return rows [begin, end) as float32."""
        return np.concatenate([part.rows(*outputs) for part, *outputs in self._pieces(begin, end)])

    @property
    def held_by(self) -> Quantization | None:
        """Format that holds the codes of all parts. Eight bits hold the values of every type."""
        formats = {part.tensor.held_by for part in self.parts}
        return formats.pop() if len(formats) == 1 else "int8-groups"

    @property
    def group(self) -> int:
        """Number of inputs that share a scale; 0 where `grouped` cannot read the parts."""
        is_alike = len({(part.tensor.dtype, part.inputs) for part in self.parts}) == 1
        return self.parts[0].tensor.group if is_alike else 0

    def grouped(self, begin: int, end: int) -> GroupedCodes:
        """Return the codes of rows [begin, end)."""
        found = [part.grouped(*outputs) for part, *outputs in self._pieces(begin, end)]
        offsets = [each.offsets for each in found if each.offsets is not None]
        codes, scales = (np.concatenate([getattr(each, name) for each in found]) for name in ("codes", "scales"))
        return GroupedCodes(codes, scales, np.concatenate(offsets) if offsets else None, self.group)

    def _pieces(self, begin: int, end: int) -> Iterator[tuple[Part, int, int, int]]:
        """Yield a part, a head, and the first and last of its outputs that are among rows [begin, end)."""
        width = sum(part.size for part in self.parts)
        for head in range(begin // width, -(-end // width)):
            at = head * width
            for part in self.parts:
                first, last = max(begin - at, 0), min(end - at, part.size)
                if first < last:
                    yield part, head, first, last
                at += part.size


def joined(name: str, files: GgufFiles, delta: GatedDeltaNetSpec | None) -> JoinedTensor | None:
    """Return the model's tensor `name`, None where the files have no parts of it.

    `delta`: the mixer whose queries, keys, values and gates are together by key head in the model.
    """
    match = MODULE.fullmatch(name)
    for module, words in PARTS if match else ():
        names = [f"blk.{match[1]}.{word}.weight" for word in words] if match and match[2] == module else []
        if names and files.entries.keys() >= set(names):
            return _joined(module, files, names, delta)
    return None


def _joined(module: str, files: GgufFiles, names: list[str], delta: GatedDeltaNetSpec | None) -> JoinedTensor:
    shapes = [files.entries[name].info.shape for name in names]
    sizes = [(math.prod(shape[:-1]), shape[-1]) for shape in shapes]
    tensors = [GgufTensor(files.entries[name], name, size) for name, size in zip(names, sizes, strict=True)]
    if module == LATENT:
        if [len(shape) for shape in shapes] != [3, 3] or shapes[0][:2] != (shapes[1][0], shapes[1][2]):
            raise files.error(f"has shape {list(shapes[0])}, and {names[1]} {list(shapes[1])}", names[0])
        (heads, inputs, keys), (_, values, _) = shapes
        return JoinedTensor((Part(tensors[0], 0, keys, inputs), Part(tensors[1], 0, values)), heads)
    if module == QKVZ and delta is not None:
        (mixed, gates), heads, keys = tensors, delta.num_key_heads, delta.key_dim
        values = delta.num_value_heads // heads * delta.value_dim
        starts = Part(mixed, 0, keys), Part(mixed, heads * keys, keys), Part(mixed, 2 * heads * keys, values)
        return JoinedTensor((*starts, Part(gates, 0, values)), heads)
    return JoinedTensor(tuple(Part(tensor, 0, tensor.shape[0]) for tensor in tensors), 1)
