"""Tensors of GGUF files under the model's own names, with the values of its own checkpoint.

The package `gguf` maps the names. What conversion to GGUF changes is undone: orders of heads (orders.py), norms with 1
added, decays as powers, and the experts of a layer in one tensor. Rows are converted to float32 on request, and nothing
is kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...models.decoder import decoder_graph
from ...models.graph import linears
from ...models.spec import ModelSpec
from ...models.state_layer import GatedDeltaNetSpec
from ..stored import StoredTensor
from .architecture import READ_WITH_CONFIG, Architecture
from .architectures import architecture_of
from .files import GgufFiles
from .orders import by_key_heads, in_pairs, in_runs
from .tensor import GgufTensor, joined

NUMBER = re.compile(r"\.(\d+)\.")
GATE_OR_UP, GATE_UP = re.compile(r"ffn_(gate|up)_exps"), "ffn_gate_up_exps"
EXPERT = re.compile(r"(\.experts)\.(\d+)\.")
ROTATED = re.compile(r"blk\.\d+\.attn_([qk])\.(weight|bias)")
FUSED = re.compile(r"blk\.\d+\.attn_qkv\.(weight|bias)")
NORM, STATE_NORM = "norm.weight", ".ssm_norm.weight"
DECAY = ".ssm_a"
STATE_PART = re.compile(r"\.linear_attn\.(in_proj_qkv|in_proj_z|in_proj_a|in_proj_b|A_log|dt_bias|conv1d|out_proj)\b")
PER_HEAD = ("in_proj_a", "in_proj_b", "A_log", "dt_bias")  # one value for a head


def model_tensors(
    files: GgufFiles, spec: ModelSpec, expected: Mapping[str, tuple[int, ...]]
) -> dict[str, StoredTensor]:
    """Return the expected tensors that the files have, and surplus tensors under the files' names."""
    architecture = architecture_of(files)
    names = _names(architecture, max(len(stack.layers) for stack in spec.stacks), expected)
    there = {name: stored for name, given in names.items() if (stored := _stored(files, given)) is not None}
    found = {name: _tensor(files, architecture, spec, name, stored) for name, stored in there.items()}
    turned = {part.weight for linear in linears(decoder_graph(spec)) for part in linear.parts if part.is_transposed}
    for name in turned & found.keys():
        found[name] = replace(found[name], shape=found[name].shape[::-1], is_turned=True)
    for name, tensor in found.items():  # convolutions of a channel, [channels, 1, taps], and columns have fewer
        if len(expected[name]) != len(tensor.shape) and math.prod(tensor.shape) == math.prod(expected[name]):
            found[name] = replace(tensor, shape=expected[name])
    mixer = _delta_net(spec)
    parts = {name: whole for name in expected.keys() - found.keys() if (whole := joined(name, files, mixer))}
    used = {tensor.name for tensor in found.values()} | {
        name for whole in parts.values() for name in (part.tensor.name for part in whole.parts)
    }
    rest = (name for name in files.entries if name not in used and name not in READ_WITH_CONFIG)
    further = {name: GgufTensor(files.entries[name], name, files.entries[name].info.shape) for name in rest}
    return {**found, **parts, **further}


def _names(row: Architecture, num_layers: int, expected: Iterable[str]) -> dict[str, str]:
    """Return the files' name of each tensor of the model that has one."""
    import gguf

    number = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}[row.name]
    mapping = gguf.get_tensor_name_map(number, num_layers)
    names = {
        name: _in_block(row, name) or mapping.get_name(_known(name, row), (".weight", ".bias")) for name in expected
    }
    # A tensor that is neither weight nor bias in the model, such as attention's sinks, is a weight in the file.
    return {
        name: found if found.endswith((".weight", ".bias", ".scale")) else f"{found}.weight"
        for name, found in names.items()
        if found is not None
    }


def _in_block(row: Architecture, name: str) -> str | None:
    """Return the file's name of a tensor of a layer that the package has no name for."""
    found = next((own for ending, own in row.in_block.items() if name.endswith(f".{ending}")), None)
    return found and f"blk.{NUMBER.findall(name)[0]}.{found}"


def _known(name: str, row: Architecture) -> str:
    """Return a name in the words of the package, where an expert has the name of all."""
    name = EXPERT.sub(r"\1.", name)
    for ours, known in row.words.items():
        name = name.replace(ours, known)
    return name


def _stored(files: GgufFiles, name: str) -> str | None:
    """Return the file's name of a tensor, which some have without an ending, or within that of gates and ups."""
    known = name, name.removesuffix(".weight"), GATE_OR_UP.sub(GATE_UP, name)
    return next((each for each in known if each in files.entries), None)


def _tensor(files: GgufFiles, row: Architecture, spec: ModelSpec, name: str, stored: str) -> GgufTensor:
    entry = files.entries[stored]
    shape, first_row, order = entry.info.shape, 0, None
    if (expert := EXPERT.search(name)) is not None and len(shape) > 1:
        _, *rest = shape
        shape, first_row = tuple(rest), int(expert[2]) * (rest[0] if len(rest) > 1 else 1)
        if GATE_UP in stored and len(rest) > 1:  # the gates of an expert, then its ups
            shape, first_row = (half := rest[0] // 2, rest[1]), first_row + half * (".up_proj" in name)
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
    part, mixer = STATE_PART.search(name), _delta_net(spec)
    if part is None or mixer is None:
        return tensor
    is_columns, width = part[1] == "out_proj", 1 if part[1] in PER_HEAD else mixer.value_dim
    size, heads = tensor.shape[int(is_columns)], (mixer.num_key_heads, mixer.num_value_heads)
    if size < mixer.num_value_heads * width:
        raise files.error(f"has {size} values, which are not those of {mixer.num_value_heads} heads", tensor.name)
    order = by_key_heads(size, *heads, width)
    return replace(tensor, columns=order) if is_columns else replace(tensor, order=order)


def _delta_net(spec: ModelSpec) -> GatedDeltaNetSpec | None:
    """Return the model's gated DeltaNet, where it has one."""
    return next((layer.mixer for layer in spec.layers if isinstance(layer.mixer, GatedDeltaNetSpec)), None)
