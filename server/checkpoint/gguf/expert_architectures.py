"""Rows of GGUF architectures with latent attention, or with experts that a bias balances.

Source: as in architectures.py.
"""

from __future__ import annotations

from .architecture import Architecture, Config, Keys, part_of_heads
from .files import GgufFiles

SIGMOID = 2  # `expert_gating_func`
CHOICE_BIAS = "exp_probs_b.bias"


def _latent(files: GgufFiles, config: Config) -> Config:
    """Return the sizes of latent attention. Files that keep keys expanded have no other length of a key."""
    heads, rotary = config["num_attention_heads"], files.number("rope.dimension_count") or 0
    length = files.number("attention.key_length_mla") or files.number("attention.key_length") or 0
    output = files.entries.get("blk.0.attn_output.weight")
    found: Config = {"num_key_value_heads": heads, "qk_nope_head_dim": length - rotary}
    found |= {"q_lora_rank": config.get("q_lora_rank")}
    if output is not None:
        found["v_head_dim"] = output.info.shape[-1] // max(1, heads)
    if (rope := config.get("rope_scaling")) and rope["rope_type"] == "yarn":
        by = 10 * (files.number("rope.scaling.yarn_log_multiplier") or 0.0)
        found["rope_scaling"] = rope | {"attention_factor": 1.0, "mscale_all_dim": float(f"{by:.5g}")}
    return found


def _deepseek(files: GgufFiles, config: Config) -> Config:
    """Return latent attention, and which of its families the file is of."""
    found = _latent(files, config) | {"norm_topk_prob": config.get("norm_topk_prob", False)}
    if not config.get("n_routed_experts"):
        return found | {"architectures": ["YoutuForCausalLM"], "model_type": "youtu"}
    has_bias = any(name.endswith(CHOICE_BIAS) for name in files.entries)
    if has_bias or files.number("expert_gating_func") == SIGMOID:
        return found | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    is_grouped = (config.get("n_group") or 1) > 1
    return found | {"topk_method": "group_limited_greedy" if is_grouped else "greedy"}


def _without_next(files: GgufFiles, config: Config) -> Config:
    """Leave out layers that predict further tokens."""
    return {"num_hidden_layers": config["num_hidden_layers"] - (files.number("nextn_predict_layers") or 0)}


def _exaone(files: GgufFiles, config: Config) -> Config:
    found = _without_next(files, config)
    types = config.get("layer_types")
    return found | ({"layer_types": types[: found["num_hidden_layers"]]} if types else {"sliding_window": None})


def _ernie(files: GgufFiles, config: Config) -> Config:
    """Return the layers with experts: those after the first, in steps."""
    return {"use_bias": config.get("attention_bias", False), "moe_layer_end_index": -1}


_ROUTED: Keys = {
    "expert_count": "n_routed_experts",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "leading_dense_block_count": "first_k_dense_replace",
}
_LATENT: Keys = {
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
}
_OWN_LENGTHS = ("attention.key_length", "attention.head_count_kv")
_ERNIE: Keys = {
    "expert_count": "moe_num_experts",
    "expert_used_count": "moe_k",
    "expert_shared_count": "moe_num_shared_experts",
    "interleave_moe_layer_step": "moe_layer_interval",
    "leading_dense_block_count": "moe_layer_start_index",
}
_BIAS: Keys = {"e_score_correction_bias": "e_score_correction.bias"}

BALANCED = (
    Architecture(
        "deepseek2",
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        _ROUTED | _LATENT,
        words=_BIAS,
        unread=_OWN_LENGTHS,
        read=_deepseek,
        has_own_heads=True,
    ),
    Architecture(
        "minicpm3", "MiniCPM3ForCausalLM", "minicpm3", _LATENT, unread=_OWN_LENGTHS, read=_latent, has_own_heads=True
    ),
    Architecture(
        "glm4moe",
        "Glm4MoeForCausalLM",
        "glm4_moe",
        _ROUTED,
        derived=part_of_heads("partial_rotary_factor"),
        words=_BIAS,
        read=_without_next,
    ),
    Architecture("dots1", "Dots1ForCausalLM", "dots1", _ROUTED, {"sliding_window": None}, words=_BIAS),
    Architecture(
        "exaone-moe",
        "ExaoneMoeForCausalLM",
        "exaone_moe",
        _ROUTED | {"expert_count": "num_experts", "expert_shared_count": "num_shared_experts"},
        words=_BIAS,
        read=_exaone,
    ),
    Architecture(
        "minimax-m2", "MiniMaxM2ForCausalLM", "minimax_m2", {"expert_count": "num_local_experts"}, words=_BIAS
    ),
    Architecture("ernie4_5-moe", "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", _ERNIE, words=_BIAS, read=_ernie),
)
