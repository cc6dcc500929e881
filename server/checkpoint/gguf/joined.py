"""Tensors of a model that conversion to GGUF takes apart, put together again as they are read.

Source: llama.cpp's conversion/deepseek.py (kv_b_proj), granite.py (shared_mlp) and qwen.py (in_proj_qkvz).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...config.formats import Quantization
from ...models.state_layer import GatedDeltaNetSpec
from ..stored import GroupedCodes
from .files import GgufFiles
from .tensor import GgufTensor
from .types import Float32

MODULE = re.compile(r".*?\.(\d+)\.(.+)\.weight")
LATENT, QKVZ = "self_attn.kv_b_proj", "linear_attn.in_proj_qkvz"
# Modules of the model, each with the file's names of its parts. A later row is for files without the first.
PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (LATENT, ("attn_k_b", "attn_v_b")),
    (QKVZ, ("attn_qkv", "attn_gate")),
    ("shared_mlp.input_linear", ("ffn_gate_shexp", "ffn_up_shexp")),
    ("shared_mlp.input_linear", ("ffn_gate", "ffn_up")),
    ("shared_mlp.output_linear", ("ffn_down",)),
)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a file's tensor, seen as a matrix: from `first` on, `size` for each head."""

    tensor: GgufTensor
    first: int
    size: int
    inputs: int = 0  # rows of a head that is stored [inputs, outputs]; 0 = it is stored [outputs, inputs]

    def rows(self, head: int, begin: int, end: int) -> Float32:
        """Return outputs [begin, end) of a head."""
        if self.inputs:
            whole = self.tensor.rows(head * self.inputs, (head + 1) * self.inputs)
            return np.ascontiguousarray(whole[:, begin:end].T)
        return self.tensor.rows(*self.span(head, begin, end))

    def span(self, head: int, begin: int, end: int) -> tuple[int, int]:
        """Return the tensor's rows of outputs [begin, end) of a head."""
        at = self.first + head * self.size
        return at + begin, at + end


@dataclass(frozen=True, slots=True)
class JoinedTensor:
    """A matrix with the rows of the first head of each part in turn, then those of the second head, and so on."""

    parts: tuple[Part, ...]
    shape: tuple[int, ...]

    @property
    def path(self) -> Path:
        return self.parts[0].tensor.path

    @property
    def dtype(self) -> str:
        return self.parts[0].tensor.dtype

    @property
    def names(self) -> set[str]:
        """Names of the parts in the file."""
        return {part.tensor.name for part in self.parts}

    @property
    def has_values(self) -> bool:
        return all(part.tensor.has_values for part in self.parts)

    def rows(self, begin: int, end: int) -> Float32:
        """Return rows [begin, end) as float32."""
        found = [part.rows(head, *span) for part, head, span in self._pieces(begin, end)]
        return np.concatenate(found) if found else np.zeros((0, *self.shape[1:]), np.float32)

    @property
    def held_by(self) -> Quantization | None:
        """Format that holds the codes of all parts. Eight bits hold the values of every type."""
        formats = {part.tensor.held_by for part in self.parts}
        return formats.pop() if len(formats) == 1 else "int8-groups"

    @property
    def group(self) -> int:
        """Number of inputs that share a scale; 0 where `grouped` cannot read the parts."""
        is_alike = len({part.tensor.dtype for part in self.parts}) == 1 and not any(part.inputs for part in self.parts)
        return self.parts[0].tensor.group if is_alike else 0

    def grouped(self, begin: int, end: int) -> GroupedCodes:
        """Return the codes of rows [begin, end)."""
        found = [part.tensor.grouped(*part.span(head, *span)) for part, head, span in self._pieces(begin, end)]
        offsets = [each.offsets for each in found if each.offsets is not None]
        codes, scales = (np.concatenate([getattr(each, name) for each in found]) for name in ("codes", "scales"))
        return GroupedCodes(codes, scales, np.concatenate(offsets) if offsets else None, self.group)

    def _pieces(self, begin: int, end: int) -> Iterator[tuple[Part, int, tuple[int, int]]]:
        """Yield a part, a head, and the outputs of it that are among rows [begin, end)."""
        width = sum(part.size for part in self.parts)
        for head in range(begin // width, -(-end // width)):
            at = head * width
            for part in self.parts:
                first, last = max(begin - at, 0), min(end - at, part.size)
                if first < last:
                    yield part, head, (first, last)
                at += part.size


def joined(name: str, files: GgufFiles, delta: GatedDeltaNetSpec | None) -> JoinedTensor | None:
    """Return the model's tensor `name`, None where the files have no parts of it.

    `delta`: the mixer whose queries, keys, values and gates are together by key head in the model.
    """
    match = MODULE.fullmatch(name)
    for module, words in PARTS if match else ():
        names = [f"blk.{match[1]}.{word}.weight" for word in words] if match and match[2] == module else []
        if names and files.entries.keys() >= set(names):
            heads, parts = _parts(module, files, names, delta)
            return JoinedTensor(parts, (heads * sum(part.size for part in parts), _inputs(parts[-1])))
    return None


def _inputs(part: Part) -> int:
    return part.tensor.shape[-1]


def _parts(
    module: str, files: GgufFiles, names: list[str], delta: GatedDeltaNetSpec | None
) -> tuple[int, tuple[Part, ...]]:
    """Return the number of heads, and the parts. Raises CheckpointError for parts that do not fit."""
    shapes = [files.entries[name].info.shape for name in names]
    tensors = [
        GgufTensor(files.entries[name], name, (math.prod(shape[:-1]), shape[-1]))
        for name, shape in zip(names, shapes, strict=True)
    ]
    if module == LATENT:
        if [len(shape) for shape in shapes] != [3, 3] or shapes[0][:2] != (shapes[1][0], shapes[1][2]):
            raise files.error(f"has shape {list(shapes[0])}, and {names[1]} {list(shapes[1])}", names[0])
        (heads, inputs, keys), (_, values, _) = shapes
        return heads, (Part(tensors[0], 0, keys, inputs), Part(tensors[1], 0, values))
    if module == QKVZ and delta is not None:
        keys, values, heads = (
            delta.key_dim,
            delta.value_dim * delta.num_value_heads // delta.num_key_heads,
            delta.num_key_heads,
        )
        starts = (tensors[0], 0, keys), (tensors[0], heads * keys, keys), (tensors[0], 2 * heads * keys, values)
        return heads, tuple(Part(*each) for each in (*starts, (tensors[1], 0, values)))
    return 1, tuple(Part(tensor, 0, tensor.shape[0]) for tensor in tensors)
