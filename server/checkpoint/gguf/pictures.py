"""A text's GGUF file with that of its vision encoder: configuration of the whole model, and the encoder's tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...models.families.text_part import TEXT_PARTS
from ...typed_json import shown
from ..reshaped import ReshapedTensor
from ..stored import StoredTensor
from .architecture import Config
from .files import ARCHITECTURE, Entry, GgufFiles, decimals
from .orders import in_pairs
from .projectors import DOWN, KINDS, PROJECTORS, UP, Projector, deep_layers, is_swapped, kind_of, size_of
from .tensor import GgufTensor, JoinedTensor, Part

LAYER = re.compile(r"v\.blk\.(\d+)\.(\w+)\.(weight|bias)")
DEEP = re.compile(r"v\.deepstack\.(\d+)\.(norm|fc1|fc2)\.(weight|bias)")
KERNEL, SECOND_KERNEL = "v.patch_embd.weight", "v.patch_embd.weight.1"  # the second is of the second frame
QUERIES = re.compile(r"v\.blk\.\d+\.attn_([qk])\.(weight|bias)")
ENDING = "forconditionalgeneration"  # of the names of architectures
EXACT_GELU = "pixtral", "clip_vision_model"
SWAPPED = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}


def with_pictures(text: Config, files: GgufFiles, tokens: Sequence[str], eyes: GgufFiles) -> tuple[Config, Config]:
    """Return config.json of the whole model, and its preprocessor_config.json.

    `text` is the config.json of the text in `files`, `tokens` its vocabulary. Raises CheckpointError for an unknown
    projector, and for a text that it does not belong to.
    """
    kind, row = _row(eyes)
    own = str(text["model_type"])
    if own not in row.wholes or row.token not in tokens:
        reason = f"takes a text of the type {' or '.join(row.wholes)} with the token {row.token}"
        raise eyes.error(f"{KINDS[0]} {kind} {reason}; {files.path.name} has the type {own}, or lacks the token")
    read, of_whole, options = row.read(eyes)
    found = ((key, eyes.number(f"vision.{name}")) for name, key in row.keys.items())
    vision: Config = {key: value for key, value in found if value is not None}
    vision |= {
        "hidden_act": _activation(eyes, read.get("model_type")),
        "intermediate_size": size_of(eyes, DOWN if is_swapped(eyes) else UP, 0),
    }
    whole = {"model_type": row.wholes[own], "image_token_id": tokens.index(row.token), **of_whole}
    name = next(each for each in TEXT_PARTS if _plain(each) == f"{_plain(whole['model_type'])}{ENDING}")
    inner = _inner(text, files, own if own in TEXT_PARTS[name] else next(iter(TEXT_PARTS[name])))
    config = {"architectures": [name], **whole, "text_config": inner, "vision_config": vision | read}
    values = {key: eyes.metadata.get(f"clip.vision.{key}") for key in ("image_mean", "image_std")}
    means = {key: decimals(each.astype(np.float32)) for key, each in values.items() if isinstance(each, np.ndarray)}
    return config, means | options


def picture_tensors(eyes: GgufFiles) -> dict[str, StoredTensor]:
    """Return the tensors of a vision encoder by the model's names; unknown ones under the file's names."""
    _, row = _row(eyes)
    deep, is_swap = deep_layers(eyes), is_swapped(eyes)
    found: dict[str, StoredTensor] = {}
    for stored, entry in eyes.entries.items():
        if stored != SECOND_KERNEL:
            found[_name(row, stored, deep, is_swap)] = _tensor(eyes, row, stored, entry)
    if eyes.entries.keys() >= {KERNEL, SECOND_KERNEL}:
        found[_name(row, KERNEL, deep, is_swap)] = _frames(eyes)
    return _with_whole_queries(found)


def _row(eyes: GgufFiles) -> tuple[str, Projector]:
    kind = kind_of(eyes)
    if eyes.metadata.get(ARCHITECTURE) != "clip" or not isinstance(kind, str) or kind not in PROJECTORS:
        raise eyes.error(f"{KINDS[0]} is {shown(kind)}: read are {', '.join(PROJECTORS)}")
    return kind, PROJECTORS[kind]


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _activation(eyes: GgufFiles, kind: object) -> str:
    """Return `hidden_act`. Files name both forms of GELU alike."""
    names = {"gelu": "gelu" if kind in EXACT_GELU else "gelu_pytorch_tanh", "silu": "silu"}
    return next((name for use, name in names.items() if eyes.metadata.get(f"clip.use_{use}")), "quick_gelu")


def _inner(text: Config, files: GgufFiles, model_type: str) -> Config:
    """Return `text_config`. Files of Qwen-VL have sections of the rotation, in turns since Qwen3-VL."""
    found = {key: value for key, value in text.items() if key != "architectures"} | {"model_type": model_type}
    if model_type == "mistral":
        found |= {"sliding_window": None}
    sections = files.metadata.get(f"{files.metadata[ARCHITECTURE]}.rope.dimension_sections")
    if isinstance(sections, np.ndarray):
        turns = {"mrope_section": sections[:3].tolist(), "mrope_interleaved": not model_type.startswith("qwen2")}
        found["rope_scaling"] = {"rope_type": "default", **(text.get("rope_scaling") or {}), **turns}
    return found


def _name(row: Projector, stored: str, deep: Sequence[int], is_swap: bool) -> str:
    if (layer := LAYER.fullmatch(stored)) is not None:
        word = SWAPPED.get(layer[2], layer[2]) if is_swap else layer[2]
        return f"{row.words['v.blk']}.{layer[1]}.{row.words.get(word, word)}.{layer[3]}"
    if (tap := DEEP.fullmatch(stored)) is not None and int(tap[1]) in deep:
        return f"visual.deepstack_merger_list.{deep.index(int(tap[1]))}.{tap[2].replace('fc', 'linear_fc')}.{tap[3]}"
    module, _, ending = stored.rpartition(".")
    return row.words.get(stored) or f"{row.words.get(module, module)}.{ending}"


def _tensor(eyes: GgufFiles, row: Projector, stored: str, entry: Entry) -> GgufTensor:
    """Return a tensor as a vector or a matrix; the kernel of a convolution has a row for each output."""
    first, *rest = entry.info.shape
    tensor = _reshaped(entry, stored, (first, math.prod(rest)) if rest else (first,))
    if row.has_rotary_pairs and QUERIES.fullmatch(stored):
        heads = eyes.number("vision.attention.head_count")
        if not isinstance(heads, int) or heads < 1 or first % (2 * heads):
            raise eyes.error(f"has {first} rows, which {shown(heads)} heads do not divide into pairs", stored)
        return replace(tensor, order=in_pairs(first, heads))
    return replace(tensor, shift=-1.0) if stored == row.shifted else tensor


def _reshaped(entry: Entry, stored: str, shape: tuple[int, ...]) -> GgufTensor:
    return GgufTensor(replace(entry, info=replace(entry.info, shape=shape)), stored, shape)


def _frames(eyes: GgufFiles) -> StoredTensor:
    """Return the kernel of both frames, [outputs, channels x frames x pixels]; the file has one tensor for each."""
    first, second = (eyes.entries[name] for name in (KERNEL, SECOND_KERNEL))
    if first.info.shape != second.info.shape or len(first.info.shape) != 4:
        raise eyes.error(f"has shape {list(second.info.shape)}, and {KERNEL} {list(first.info.shape)}", SECOND_KERNEL)
    outputs, channels, *pixels = first.info.shape
    planes = (_reshaped(each, KERNEL, (outputs * channels, math.prod(pixels))) for each in (first, second))
    joined = JoinedTensor(tuple(Part(each, 0, 1) for each in planes), outputs * channels)
    return ReshapedTensor(joined, (outputs, 2 * channels * math.prod(pixels)))


def _with_whole_queries(found: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors, those of queries, keys and values of Qwen as one."""
    whole: dict[str, StoredTensor] = {}
    for name, tensor in found.items():
        parts = [found.get(name.replace(".attn.q.", f".attn.{part}.")) for part in "qkv"]
        if ".attn.q." in name and all(isinstance(part, GgufTensor) for part in parts):
            joined = tuple(Part(part, 0, part.shape[0]) for part in parts if isinstance(part, GgufTensor))
            whole[name.replace(".attn.q.", ".attn.qkv.")] = JoinedTensor(joined, 1)
        elif not any(f".attn.{part}." in name for part in "kv"):
            whole[name] = tensor
    return whole
