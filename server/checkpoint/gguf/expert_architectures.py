"""Rows of GGUF architectures with latent attention, or with experts that a bias balances.

Source: as in architectures.py.
"""

from __future__ import annotations

from .architecture import KV_HEADS, Architecture, Config, keys, names_of, part_of_heads
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
    by = 10 * (files.number("rope.scaling.yarn_log_multiplier") or 0.0)
    if by and (rope := config.get("rope_scaling")):
        found["rope_scaling"] = rope | {"attention_factor": 1.0, "mscale_all_dim": float(f"{by:.5g}")}
    return found


def _deepseek(files: GgufFiles, config: Config) -> Config:
    """Return latent attention, and which of its families the file is of."""
    found = _latent(files, config) | {"norm_topk_prob": config.get("norm_topk_prob", False)}
    if not config.get("n_routed_experts"):
        return found | names_of("youtu")
    has_bias = any(name.endswith(CHOICE_BIAS) for name in files.entries)
    if has_bias or files.number("expert_gating_func") == SIGMOID:
        return found | names_of("deepseek_v3")
    is_grouped = (config.get("n_group") or 1) > 1
    return found | {"topk_method": "group_limited_greedy" if is_grouped else "greedy"}


def _without_next(files: GgufFiles, config: Config) -> Config:
    """Leave out layers that predict further tokens."""
    layers = config["num_hidden_layers"] - (files.number("nextn_predict_layers") or 0)
    found: Config = {"num_hidden_layers": layers}
    return found | ({"layer_types": config["layer_types"][:layers]} if "layer_types" in config else {})


def _glm(files: GgufFiles, config: Config) -> Config:
    return _without_next(files, config) | part_of_heads()(files, config)


def _exaone(files: GgufFiles, config: Config) -> Config:
    return _without_next(files, config) | ({} if "layer_types" in config else {"sliding_window": None})


ROUTED = keys(
    "expert_count=n_routed_experts expert_shared_count=n_shared_experts expert_weights_scale=routed_scaling_factor"
    " expert_weights_norm=norm_topk_prob expert_group_count=n_group expert_group_used_count=topk_group"
    " leading_dense_block_count=first_k_dense_replace"
)
_LATENT = keys(
    "attention.q_lora_rank=q_lora_rank attention.kv_lora_rank=kv_lora_rank rope.dimension_count=qk_rope_head_dim"
)
_OWN_LENGTHS = "attention.key_length", KV_HEADS
_EXAONE = ROUTED | keys("expert_count=num_experts expert_shared_count=num_shared_experts")
_ERNIE = keys(
    "expert_count=moe_num_experts expert_used_count=moe_k expert_shared_count=moe_num_shared_experts"
    " interleave_moe_layer_step=moe_layer_interval leading_dense_block_count=moe_layer_start_index"
)
BIAS = {"e_score_correction_bias": "e_score_correction.bias"}

BALANCED = (
    Architecture(
        "deepseek2", "deepseek_v2", ROUTED | _LATENT, {}, _deepseek, _OWN_LENGTHS, has_own_heads=True, words=BIAS
    ),
    Architecture("minicpm3", "minicpm3", _LATENT, {}, _latent, _OWN_LENGTHS, has_own_heads=True),
    Architecture("glm4moe", "glm4_moe", ROUTED, {}, _glm, words=BIAS),
    Architecture("dots1", "dots1", ROUTED, {"sliding_window": None}, words=BIAS),
    Architecture("exaone-moe", "exaone_moe", _EXAONE, read=_exaone, words=BIAS),
    Architecture("minimax-m2", "minimax_m2", keys("expert_count=num_local_experts"), words=BIAS),
    Architecture(
        "ernie4_5-moe",
        "ernie4_5_moe",
        _ERNIE,
        read=lambda _, config: {"use_bias": config["attention_bias"]},
        words=BIAS,
    ),
)
