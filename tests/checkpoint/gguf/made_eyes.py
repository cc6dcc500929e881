"""Writes GGUF files of tiny models that see pictures: one of the text, and one of the vision encoder (`mmproj`).

Keys, names and forms are those of llama.cpp's conversion (conversion/{base,gemma,llava,qwen3vl,qwenvl,smolvlm}.py and
legacy-models/convert_image_encoder_to_gguf.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.model_config import read_model_spec
from neuronserve.server.checkpoint.tensor_files import open_safetensors
from neuronserve.server.models.tensors import tensor_shapes
from tests.checkpoint.gguf.made import finish, write_gguf

PROJECTORS = {
    "gemma3": "gemma3",
    "smolvlm": "idefics3",
    "idefics3": "idefics3",
    "mistral3": "pixtral",
    "llava-pixtral": "pixtral",
    "llava-clip": "mlp",
    "llava-siglip": "mlp",
    "qwen2-vl": "qwen2vl_merger",
    "qwen2.5-vl": "qwen2.5vl_merger",
    "qwen3-vl": "qwen3vl_merger",
    "qwen3-vl-moe": "qwen3vl_merger",
    "qwen3.5": "qwen3vl_merger",
}
PLACEHOLDERS = {"gemma3": "<image_soft_token>", "pixtral": "[IMG]", "idefics3": "<image>", "mlp": "<image>"}
Values = dict[str, Any]
Tensors = Iterator[tuple[str, np.ndarray]]
NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 16)
TYPES = {  # of the text in a file of its own, with the name of its architecture there
    "qwen2_vl_text": ("qwen2", "qwen2vl"),
    "qwen2_5_vl_text": ("qwen2", "qwen2vl"),
    "qwen3_vl_text": ("qwen3", "qwen3vl"),
    "qwen3_vl_moe_text": ("qwen3_moe", "qwen3vlmoe"),
    "qwen3_5_text": ("qwen3_5_text", "qwen35"),
    "mistral": ("llama", "llama"),
}


def write_text(name: str, plain: Path, path: Path, token: int, template: str = "") -> Path:
    """Write the file of the text's part of the checkpoint `plain`."""
    spec = read_model_spec(plain)
    checkpoint = Checkpoint.open(plain, spec)
    tensors = {each: checkpoint.load(each) for each in tensor_shapes(spec)}
    text = json.loads((plain / "config.json").read_text())["text_config"]
    config = {key: value for key, value in text.items() if value is not None}
    config["model_type"], config["gguf"] = TYPES.get(text["model_type"], (text["model_type"], None))
    if name == "qwen3.5":  # the writer derives how much of a head turns from heads that fill the stream
        config["partial_rotary_factor"] = 0.25 * text["head_dim"] * text["num_attention_heads"] / text["hidden_size"]
    config["tokens"] = {token: PLACEHOLDERS.get(PROJECTORS[name], "<|image_pad|>")}

    def edit(writer: gguf.GGUFWriter) -> None:
        if template:
            writer.add_chat_template(template)
        rope = text.get("rope_parameters") or {}
        if sections := rope.get("mrope_section"):
            writer.add_rope_dimension_sections([*sections, 0])
        if name == "gemma3":
            writer.add_sliding_window_pattern([each == "sliding_attention" for each in text["layer_types"]])
        if name == "qwen3.5":
            writer.add_array("qwen35.attention.recurrent_layers", [each[0] == "l" for each in text["layer_types"]])
            writer.add_ssm_conv_kernel(text["linear_conv_kernel_dim"])
            writer.add_ssm_state_size(text["linear_key_head_dim"])
            writer.add_ssm_group_count(text["linear_num_key_heads"])
            writer.add_ssm_time_step_rank(text["linear_num_value_heads"])
            writer.add_ssm_inner_size(text["linear_num_value_heads"] * text["linear_value_head_dim"])

    return write_gguf(path, config, tensors, edit=edit)


def write_eyes(name: str, plain: Path, path: Path, kind: gguf.GGMLQuantizationType, is_old: bool = False) -> Path:
    """Write the file of the vision encoder of the checkpoint `plain`, its matrices as `kind`."""
    config = json.loads((plain / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(PROJECTORS[name])
    _write_keys(writer, config, config["vision_config"])
    swapped = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"} if is_old else {}
    for stored, values in _tensors(PROJECTORS[name], plain, config):
        has_codes = values.ndim > 1 and "position" not in stored and kind == gguf.GGMLQuantizationType.F16
        name_there = re.sub("ffn_(up|down)", lambda found: swapped.get(found[0], found[0]), stored)
        writer.add_tensor(name_there, np.ascontiguousarray(values, np.float16 if has_codes else np.float32))
    finish(writer)
    return path


def _write_keys(writer: gguf.GGUFWriter, config: Values, eyes: Values) -> None:
    kind, merge = config["model_type"], eyes.get("spatial_merge_size")
    layers = eyes.get("num_hidden_layers", eyes.get("depth"))
    width = eyes["embed_dim"] if kind == "qwen2_vl" else eyes["hidden_size"]
    if kind == "llava" and config["vision_feature_layer"] == -2:
        layers -= 1
        writer.add_array("clip.vision.feature_layer", [layers])
    patch, positions = eyes["patch_size"], eyes.get("num_position_embeddings", 0)
    writer.add_vision_image_size(eyes.get("image_size") or int(positions**0.5) * patch or 560)
    writer.add_vision_patch_size(patch)
    writer.add_vision_embedding_length(width)
    writer.add_vision_feed_forward_length(eyes.get("intermediate_size", 0))
    writer.add_vision_block_count(layers)
    writer.add_vision_head_count(eyes.get("num_attention_heads", eyes.get("num_heads")))
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    writer.add_vision_attention_layernorm_eps(eyes.get("layer_norm_eps", 1e-6))
    writer.add_vision_image_mean([0.5, 0.25, 0.125])
    writer.add_vision_image_std([0.5, 0.5, 0.75])
    if "silu" in eyes["hidden_act"]:
        writer.add_vision_use_silu(True)
    elif "gelu" in eyes["hidden_act"] and "quick" not in eyes["hidden_act"]:
        writer.add_vision_use_gelu(True)
    match kind:
        case "gemma3":
            writer.add_vision_projector_scale_factor(2)
        case "idefics3" | "smolvlm":
            writer.add_vision_projector_scale_factor(config["scale_factor"])
            writer.add_vision_preproc_image_size(96)
        case "mistral3":
            writer.add_vision_spatial_merge_size(config["spatial_merge_size"])
        case "qwen2_5_vl":
            writer.add_vision_n_wa_pattern(eyes["fullatt_block_indexes"][0] + 1)
            writer.add_uint32("clip.vision.window_size", eyes["window_size"])
        case "qwen3_vl" | "qwen3_vl_moe" | "qwen3_5":
            writer.add_vision_spatial_merge_size(merge)
            deep = eyes.get("deepstack_visual_indexes", [])
            writer.add_vision_is_deepstack_layers([layer in deep for layer in range(layers)])


def _tensors(kind: str, plain: Path, config: Values) -> Tensors:
    """Yield the tensors of the file."""
    deep = config["vision_config"].get("deepstack_visual_indexes", [])
    last = config["vision_config"].get("num_hidden_layers", 0) + config.get("vision_feature_layer", -1)
    for name, tensor in open_safetensors(plain).items():
        values = np.asarray(tensor.rows(0, tensor.shape[0]), np.float32).reshape(tensor.shape)
        if not any(part in name for part in ("visual", "vision", "projector", "connector")) or ".head." in name:
            continue
        if kind == "mlp" and (f"layers.{last + 1}." in name or "post_layernorm" in name):
            continue
        inner = name.removeprefix("model.") if kind != "idefics3" else name
        yield from _converted(kind, inner, values, config["vision_config"], deep)


def _converted(kind: str, name: str, values: np.ndarray, eyes: Values, deep: list[int]) -> Tensors:
    if name == "visual.patch_embed.proj.weight":
        yield "v.patch_embd.weight", values[:, :, 0]
        yield "v.patch_embd.weight.1", values[:, :, 1]
        return
    if ".qkv." in name and kind != "qwen3vl_merger":
        for part, third in zip("qkv", np.split(values, 3), strict=True):
            yield _mapped(name.replace("qkv", part)), third
        return
    if tap := re.fullmatch(r"visual\.deepstack_merger_list\.(\d)\.(norm|linear_fc\d)\.(\w+)", name):
        yield f"v.deepstack.{deep[int(tap[1])]}.{tap[2].removeprefix('linear_')}.{tap[3]}", values
        return
    if kind == "pixtral" and (part := re.search(r"\.([qk])_proj\.", name)):
        heads = eyes["num_attention_heads"]
        values = values.reshape(heads, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
    name = name.replace("_weight", ".weight")
    for own, word in {
        "visual.merger.linear_fc1": "visual.merger.mlp.0",
        "visual.merger.linear_fc2": "visual.merger.mlp.2",
        "visual.merger.norm": "visual.merger.ln_q",
        "multi_modal_projector.patch_merger.merging_layer": "mm.patch_merger",
    }.items():
        name = name.replace(own, word)
    if kind == "mlp":  # LLaVA's own names count the activation between the layers
        name = name.replace("projector.linear_1", "projector.linear_0")
    yield _mapped(name), values + 1 if "soft_emb_norm" in name else values


def _mapped(name: str) -> str:
    stem, _, ending = name.rpartition(".")
    if name.startswith("mm."):
        return name
    known = name, name.replace("vision_tower.", "vision_tower.vision_model.")
    found = next((each for each in (NAMES.get_name(one, (".weight", ".bias")) for one in known) if each), None)
    assert found is not None, (stem, ending)
    return found
