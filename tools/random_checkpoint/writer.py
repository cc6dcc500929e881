"""Write one whole checkpoint directory: configuration, tokenizer, weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuronserve.server.checkpoint.fused_experts import EXPERT
from neuronserve.server.models.families import model_spec_of
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.tensors import tensor_shapes
from tools.random_checkpoint.safetensors_writer import Layout, split, write_safetensors
from tools.random_checkpoint.shapes import SHAPES
from tools.random_checkpoint.tokenizer import generation_config, tokenizer_config, tokenizer_json
from tools.random_checkpoint.weights import ITEM_BYTES, SAFETENSORS_DTYPES, tensor_chunks

TORCH_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
OnTensor = Callable[[int, int], None]  # bytes written so far, total bytes


@dataclass(frozen=True, slots=True)
class Options:
    """Differences from the named shape."""

    dtype: str = "bf16"  # bf16, f16 or f32
    seed: int = 0
    layers: int | None = None  # None: the shape's own
    vocab: int | None = None
    shards: int = 1


def write_checkpoint(
    shape: str, directory: Path, options: Options = Options(), on_tensor: OnTensor = lambda _done, _total: None
) -> None:
    """Write a checkpoint of the named shape to `directory`, which must be empty or absent.

    `on_tensor(done, total)` is called after each tensor, with bytes. Before anything is written, raises ValueError or
    CheckpointError for impossible options, FileExistsError if `directory` has files, and OSError if the disk has too
    little room.
    """
    if shape not in SHAPES:
        raise ValueError(f"unknown shape {shape!r}; known are {', '.join(SHAPES)}")
    config = SHAPES[shape].config(TORCH_DTYPES[options.dtype], options.layers, options.vocab)
    tokenizer = tokenizer_json(config["vocab_size"])
    spec = model_spec_of(config)
    shapes, norm_mean = _stored(tensor_shapes(spec), spec), 1.0 - spec.stack.norm.offset
    layout = Layout(shapes, SAFETENSORS_DTYPES[options.dtype], ITEM_BYTES[options.dtype])
    shards = split(layout, options.shards)
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty")
    free = shutil.disk_usage(directory).free
    if layout.total_bytes > free:
        raise OSError(f"{directory}: the weights take {layout.total_bytes} bytes, the disk has {free} free")
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", generation_config(config["vocab_size"]))
    _write_json(directory / "tokenizer.json", tokenizer)
    _write_json(directory / "tokenizer_config.json", tokenizer_config(spec.max_position))
    for done in write_safetensors(
        directory,
        layout,
        shards,
        lambda name: tensor_chunks(name, shapes[name], options.dtype, options.seed, norm_mean),
    ):
        on_tensor(done, layout.total_bytes)


def _stored(shapes: dict[str, tuple[int, ...]], spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return shapes and names of the tensors in files; some families store a layer's experts in one tensor."""
    endings = {new: old for old, new in spec.names.old_endings if ".experts." in new or ".router." in new}
    if spec.experts is None or (spec.names.fused == "outputs" and not endings):
        return shapes
    stored: dict[str, tuple[int, ...]] = {}
    for name, (outputs, *inputs) in shapes.items():
        if (found := EXPERT.fullmatch(name)) is None:
            stored[name] = (outputs, *inputs)
        elif found[3] != "up":
            fused = "down_proj" if found[3] == "down" else "gate_up_proj"
            width = outputs if found[3] == "down" else 2 * outputs
            one = (width, *inputs) if spec.names.fused == "outputs" else (*inputs, width)
            stored[f"{found[1]}.{fused}{'_bias' * (found[4] == 'bias')}"] = (spec.experts.count, *one)
    return {_in_file(name, endings): shape for name, shape in stored.items()}


def _in_file(name: str, endings: Mapping[str, str]) -> str:
    """Return the name in a file of the model's tensor `name`."""
    for ours, stored in endings.items():
        if name.endswith(ours):
            return name.removesuffix(ours) + stored
    return name


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
