"""Random models that see pictures, and pictures as their image processors return them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

TEXT: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
QWEN25 = {"rope_parameters": {**ROPE, "mrope_section": [3, 2, 1]}, "head_dim": 12}
QWEN3 = {"rope_parameters": {**ROPE, "mrope_section": [4, 2, 2], "mrope_interleaved": True}}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
QWEN_EYES: dict[str, Any] = {
    "depth": 4,
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_heads": 3,
    "out_hidden_size": 48,
}
QWEN25_EYES = {**QWEN_EYES, "patch_size": 4, "window_size": 16, "fullatt_block_indexes": [1, 3]}
QWEN3_EYES = {
    **QWEN_EYES,
    "patch_size": 4,
    "num_position_embeddings": 25,
    "deepstack_visual_indexes": [0, 2],
}
SIGLIP_EYES: dict[str, Any] = {
    "hidden_size": 40,
    "intermediate_size": 52,
    "num_hidden_layers": 2,
    "num_attention_heads": 5,
    "image_size": 24,
    "patch_size": 4,
}
PIXTRAL_EYES: dict[str, Any] = {**SIGLIP_EYES, "model_type": "pixtral", "num_attention_heads": 2, "head_dim": 20}
CLIP_EYES: dict[str, Any] = {**SIGLIP_EYES, "model_type": "clip_vision_model", "num_hidden_layers": 3}
QWEN2_EYES = {"depth": 2, "embed_dim": 36, "hidden_size": 48, "num_heads": 3, "mlp_ratio": 2, "patch_size": 4}
QWEN35_EYES = {key: value for key, value in QWEN3_EYES.items() if not key.startswith("deepstack")}
SHARED = {"shared_expert_intermediate_size": 20}
QWEN35 = {
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
    "rope_parameters": {
        **ROPE,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
LLAMA4_EYES: dict[str, Any] = {
    **SIGLIP_EYES,
    "intermediate_size": 160,
    "projector_input_dim": 28,
    "projector_output_dim": 28,
    "vision_output_dim": 28,
    "rope_parameters": {**ROPE, "rope_theta": 100.0},
}
LLAMA4 = {
    "intermediate_size_mlp": 68,
    "num_local_experts": 4,
    "moe_layers": [1],
    "no_rope_layers": [1, 0, 1],
    "attention_chunk_size": 16,
    "floor_scale": 8,
    "rope_parameters": ROPE,
}
TOKEN = 7  # placeholder
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {  # family, text, eyes, whole
    "qwen2-vl": ("Qwen2VL", QWEN25, QWEN2_EYES, {"image_token_id": TOKEN}),
    "qwen2.5-vl": ("Qwen2_5_VL", QWEN25, QWEN25_EYES, {"image_token_id": TOKEN}),
    "qwen3-vl": ("Qwen3VL", QWEN3, QWEN3_EYES, {"image_token_id": TOKEN}),
    "qwen3-vl-moe": ("Qwen3VLMoe", {**QWEN3, **EXPERTS}, QWEN3_EYES, {"image_token_id": TOKEN}),
    "qwen3.5": ("Qwen3_5", QWEN35, QWEN35_EYES, {"image_token_id": TOKEN}),
    "qwen3.5-moe": ("Qwen3_5Moe", {**QWEN35, **EXPERTS, **SHARED}, QWEN35_EYES, {"image_token_id": TOKEN}),
    "smolvlm": ("SmolVLM", {"model_type": "llama"}, SIGLIP_EYES, {"image_token_id": TOKEN, "scale_factor": 3}),
    "idefics3": ("Idefics3", {"model_type": "llama"}, SIGLIP_EYES, {"image_token_id": TOKEN}),
    "gemma3": (
        "Gemma3",
        {
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 16,
        },
        {**SIGLIP_EYES, "vision_use_head": False},
        {"image_token_index": TOKEN, "mm_tokens_per_image": 9},
    ),
    "gemma4": (
        "Gemma4",
        {
            "global_head_dim": 24,
            "hidden_size_per_layer_input": 0,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "num_hidden_layers": 4,
            "use_bidirectional_attention": "vision",
        },
        {
            **SIGLIP_EYES,
            "num_key_value_heads": 5,
            "head_dim": 12,
            "position_embedding_size": 64,
            "standardize": True,
            "image_size": None,
        },
        {"image_token_id": TOKEN, "audio_config": None},
    ),
    "llama4": ("Llama4", LLAMA4, LLAMA4_EYES, {"image_token_index": TOKEN}),
    "llava-clip": ("Llava", {"model_type": "llama"}, CLIP_EYES, {"image_token_index": TOKEN}),
    "llava-siglip": (
        "Llava",
        {"model_type": "qwen2", "head_dim": 12},
        {**SIGLIP_EYES, "model_type": "siglip_vision_model", "vision_use_head": False},
        {"image_token_index": TOKEN, "vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
    ),
    "llava-pixtral": (
        "Llava",
        {"model_type": "mistral", "sliding_window": None},
        PIXTRAL_EYES,
        {"image_token_index": TOKEN, "vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
    ),
    "mistral3": (
        "Mistral3",
        {"model_type": "mistral", "sliding_window": None, "rms_norm_eps": 1e-4},
        PIXTRAL_EYES,
        {"image_token_index": TOKEN, "vision_feature_layer": -1},
    ),
}


def random_vision_model(name: str, directory: Path, vocab_size: int = 101, **changes: Any) -> Any:
    """Write a random model of that name, its whole configuration changed, and return it."""
    family, text, eyes, whole = MODELS[name]
    config = getattr(transformers, f"{family}Config")(
        text_config={**TEXT, **text, "vocab_size": vocab_size}, vision_config=eyes, **{**whole, **changes}
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config)
    if family == "Llama4":  # reads a field that the output of its text has not
        transformers.modeling_outputs.MoeCausalLMOutputWithPast.image_outputs = None
    for at, parameter in model.named_parameters():
        if "language_model" in at and name.startswith("qwen3.5"):
            continue  # larger weights would amplify the rounding of its states, in transformers too
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        else:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        if family == "Gemma4" and at.endswith("q_norm.weight"):
            parameter.data.mul_(0.25)  # scores have no other scale
    for at, values in model.named_buffers():
        if "std_" in at:
            torch.nn.init.uniform_(values, 0.5, 1.5)
    model.save_pretrained(directory)
    return model.eval()


def random_picture(name: str, grid: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    """Return a picture of `grid` patches of 4 x 4 pixels: patches of Qwen, crops of other models."""
    frames, height, width = grid
    frames_of_a_patch = 1 if name == "gemma4" else 2
    is_of_patches = MODELS[name][0].startswith(("Qwen", "Gemma4"))
    shape = (
        (frames * height * width, 3 * frames_of_a_patch * 16) if is_of_patches else (frames, 3, height * 4, width * 4)
    )
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
