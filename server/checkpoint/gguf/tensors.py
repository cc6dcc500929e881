"""Tensors of GGUF files under the model's own names, with the values of its own checkpoint.

The package `gguf` maps the names. What conversion to GGUF changes is undone: orders of heads (orders.py), norms with 1
added, decays as powers, and the experts of a layer in one tensor. Rows are converted to float32 on request, and nothing
is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...config.formats import Quantization
from ...models.decoder import decoder_graph
from ...models.graph import linears
from ...models.spec import ModelSpec
from ...models.state_layer import GatedDeltaNetSpec
from ..stored import GroupedCodes
from .architecture import Architecture
from .architectures import architecture_of
from .files import Entry, GgufFiles
from .groups import GROUP, GROUPED, grouped
from .orders import Order, by_key_heads, in_pairs, in_runs
from .types import Bytes, Float32

EXPERT = re.compile(r"(\.experts)\.(\d+)\.")
ROTATED = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")
FUSED = re.compile(r"blk\.\d+\.attn_qkv\.(weight|bias)")
NORM, STATE_NORM = "norm.weight", ".ssm_norm.weight"
DECAY = ".ssm_a"
STATE_PART = re.compile(r"\.linear_attn\.(in_proj_qkv|in_proj_z|in_proj_a|in_proj_b|A_log|dt_bias|conv1d|out_proj)\b")
PER_HEAD = ("in_proj_a", "in_proj_b", "A_log", "dt_bias")  # one value for a head


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
        whole = self.entry.info.type.values(self.entry.bytes_of(self.first_row, self.first_row + 1, self.name))
        values: Float32 = whole[0, self._places(begin, end)] + np.float32(self.shift)
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
        is_whole = self.columns is None or bool((self.columns.reshape(-1, GROUP)[:, 0] % GROUP == 0).all())
        return GROUP if self.dtype in GROUPED and len(self.shape) > 1 and not self.is_turned and is_whole else 0

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


def model_tensors(files: GgufFiles, spec: ModelSpec, expected: Mapping[str, tuple[int, ...]]) -> dict[str, GgufTensor]:
    """Return the expected tensors that the files have, and surplus tensors under the files' names."""
    architecture = architecture_of(files)
    names = _names(architecture, spec.num_layers, expected)
    there = {name: stored for name, given in names.items() if (stored := _stored(files, given)) is not None}
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


def _stored(files: GgufFiles, name: str) -> str | None:
    """Return the file's name of a tensor, which some have without an ending."""
    return next((each for each in (name, name.removesuffix(".weight")) if each in files.entries), None)


def _tensor(files: GgufFiles, row: Architecture, spec: ModelSpec, name: str, stored: str) -> GgufTensor:
    entry = files.entries[stored]
    shape, first_row, order = entry.info.shape, 0, None
    if (expert := EXPERT.search(name)) is not None and len(shape) > 1:
        _, *rest = shape
        shape, first_row = tuple(rest), int(expert[2]) * (rest[0] if len(rest) > 1 else 1)
    if row.has_rotary_pairs and (part := ROTATED.fullmatch(stored)):
        num_heads = spec.num_heads if part[1] == "q" else spec.num_kv_heads
        if shape[0] % (2 * num_heads):
            raise files.error(f"has {shape[0]} rows, which {num_heads} heads do not divide into pairs", stored)
        order = in_pairs(shape[0], num_heads)
    if row.has_heads_apart and FUSED.fullmatch(stored):
        kv_heads, queries = spec.num_kv_heads, spec.num_heads // spec.num_kv_heads
        if shape[0] % ((queries + 2) * kv_heads):
            raise files.error(f"has {shape[0]} rows, which are not q, k and v of {spec.num_heads} heads", stored)
        order = in_runs(shape[0], kv_heads, queries)
    shift = -row.norm_shift if stored.endswith(NORM) and not stored.endswith(STATE_NORM) else 0.0
    tensor = GgufTensor(entry, stored, shape, first_row, shift=shift, is_exponent=stored.endswith(DECAY), order=order)
    return _of_state(files, spec, name, tensor) if row.has_key_heads_in_turns else tensor


def _of_state(files: GgufFiles, spec: ModelSpec, name: str, tensor: GgufTensor) -> GgufTensor:
    """Return a tensor of gated DeltaNet in the model's order of value heads."""
    part = STATE_PART.search(name)
    mixer = next((layer.mixer for layer in spec.layers if isinstance(layer.mixer, GatedDeltaNetSpec)), None)
    if part is None or mixer is None:
        return tensor
    is_columns, width = part[1] == "out_proj", 1 if part[1] in PER_HEAD else mixer.value_dim
    size, heads = tensor.shape[int(is_columns)], (mixer.num_key_heads, mixer.num_value_heads)
    if size < mixer.num_value_heads * width:
        raise files.error(f"has {size} values, which are not those of {mixer.num_value_heads} heads", tensor.name)
    order = by_key_heads(size, *heads, width)
    return replace(tensor, columns=order) if is_columns else replace(tensor, order=order)
