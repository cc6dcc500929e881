"""Rows of GGUF architectures whose config.json has keys of its own for the same values.

Source: as in architectures.py.
"""

from __future__ import annotations

from .architecture import Architecture, Config, Derive, Keys, part_of_heads, window_or_none


def _biases(*keys: str) -> Derive:
    """Return a function for the keys that a family has for the biases of q, k and v."""
    return lambda config: dict.fromkeys(keys, config.get("attention_bias", False))


def _stablelm(config: Config) -> Config:
    return part_of_heads("partial_rotary_factor")(config) | _biases("use_qkv_bias")(config)


def _minicpm(config: Config) -> Config:
    """Derive the values that the multipliers were made of, at the precision of a config.json."""
    depth = config.get("residual_scale", 1.0) * config["num_hidden_layers"] ** 0.5
    base = config["hidden_size"] / config.get("logits_scaling", config["hidden_size"])
    return {"scale_depth": float(f"{depth:.5g}"), "dim_model_base": round(base)}


def _falcon(config: Config) -> Config:
    has_few = config.get("num_kv_heads", 1) > 1
    return {"multi_query": not has_few, "new_decoder_architecture": has_few}


def _bigcode(config: Config) -> Config:
    return {"multi_query": config.get("num_key_value_heads") == 1}


def _mpt(config: Config) -> Config:
    bias = config.get("alibi_bias_max", 0.0)
    return {"attn_config": {"alibi": bias > 0, "alibi_bias_max": bias, "clip_qkv": config.get("clip_qkv")}}


def _hunyuan_moe(config: Config) -> Config:
    return {"num_shared_expert": config.get("num_shared_expert") or 1}


def _qwen35(config: Config) -> Config:
    """Derive the size of value heads, and leave out layers that predict further tokens."""
    derived: Config = {"num_hidden_layers": config["num_hidden_layers"] - config.get("nextn_predict_layers", 0)}
    if heads := config.get("linear_num_value_heads"):
        derived["linear_value_head_dim"] = config.get("ssm_inner_size", 0) // heads
    return derived


_BLOOM: Keys = {
    "context_length": "seq_length",
    "block_count": "n_layer",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
_BIGCODE: Keys = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "feed_forward_length": "n_inner",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
_MPT: Keys = {
    "context_length": "max_seq_len",
    "embedding_length": "d_model",
    "block_count": "n_layers",
    "attention.head_count": "n_heads",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "attention.clamp_kqv": "clip_qkv",
    "attention.max_alibi_bias": "alibi_bias_max",
}
_FALCON: Keys = {
    "attention.head_count_kv": "num_kv_heads",
    "feed_forward_length": "ffn_hidden_size",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
_EXAONE: Keys = {"block_count": "num_layers", "attention.layer_norm_rms_epsilon": "layer_norm_epsilon"}
_MINICPM: Keys = {"embedding_scale": "scale_emb", "residual_scale": "residual_scale", "logit_scale": "logits_scaling"}
_HUNYUAN_MOE: Keys = {"expert_used_count": "moe_topk", "expert_shared_count": "num_shared_expert"}
_QWEN35: Keys = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "ssm.inner_size": "ssm_inner_size",
    "full_attention_interval": "full_attention_interval",
    "nextn_predict_layers": "nextn_predict_layers",
}
_QWEN35_WORDS: Keys = {".dt_bias": ".dt_proj.bias"}
_LFM2: Keys = {
    "attention.layer_norm_rms_epsilon": "norm_eps",
    "shortconv.l_cache": "conv_L_cache",
    "leading_dense_block_count": "num_dense_layers",
}
_LFM2_WORDS: Keys = {
    "expert_bias": "expert_bias.bias",
    "feed_forward.experts.w1": "mlp.experts.gate_proj",
    "feed_forward.experts.w2": "mlp.experts.down_proj",
    "feed_forward.experts.w3": "mlp.experts.up_proj",
}
_ADJUSTED: Config = {"block_auto_adjust_ff_dim": False}  # the file has the size that follows
_SQUARE: Config = {"hidden_act": "relu2"}

MORE = (
    Architecture("seed_oss", "SeedOssForCausalLM", "seed_oss"),
    Architecture("glm4", "Glm4ForCausalLM", "glm4", derived=part_of_heads("partial_rotary_factor")),
    Architecture("exaone", "ExaoneForCausalLM", "exaone", _EXAONE),
    Architecture("exaone4", "Exaone4ForCausalLM", "exaone4", derived=window_or_none),
    Architecture("minicpm", "MiniCPMForCausalLM", "minicpm", _MINICPM, derived=_minicpm, has_rotary_pairs=True),
    Architecture("arcee", "ArceeForCausalLM", "arcee", values=_SQUARE, has_rotary_pairs=True),
    Architecture(
        "nemotron",
        "NemotronForCausalLM",
        "nemotron",
        {"attention.layer_norm_epsilon": "norm_eps"},
        _SQUARE,
        part_of_heads("partial_rotary_factor"),
        norm_shift=1.0,
    ),
    Architecture(
        "stablelm",
        "StableLmForCausalLM",
        "stablelm",
        {"use_parallel_residual": "use_parallel_residual"},
        derived=_stablelm,
    ),
    Architecture("olmo", "OlmoForCausalLM", "olmo", {"attention.clamp_kqv": "clip_qkv"}, has_rotary_pairs=True),
    Architecture("ernie4_5", "Ernie4_5ForCausalLM", "ernie4_5", derived=_biases("use_bias")),
    Architecture("hunyuan-dense", "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"),
    Architecture("hunyuan-moe", "HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", _HUNYUAN_MOE, derived=_hunyuan_moe),
    Architecture(
        "starcoder2",
        "Starcoder2ForCausalLM",
        "starcoder2",
        {"attention.layer_norm_epsilon": "norm_epsilon"},
        {"hidden_act": "gelu_pytorch_tanh"},
        _biases("use_bias"),
    ),
    Architecture("starcoder", "GPTBigCodeForCausalLM", "gpt_bigcode", _BIGCODE, derived=_bigcode),
    Architecture("falcon", "FalconForCausalLM", "falcon", _FALCON, derived=_falcon, has_heads_apart=True),
    Architecture("bloom", "BloomForCausalLM", "bloom", _BLOOM, words={"transformer.": ""}, has_heads_apart=True),
    Architecture("mpt", "MptForCausalLM", "mpt", _MPT, derived=_mpt),
    Architecture("lfm2", "Lfm2ForCausalLM", "lfm2", _LFM2, _ADJUSTED, state_layer="conv"),
    Architecture("lfm2moe", "Lfm2MoeForCausalLM", "lfm2_moe", _LFM2, _ADJUSTED, words=_LFM2_WORDS, state_layer="conv"),
    *(
        Architecture(
            name,
            hub_name,
            model_type,
            _QWEN35,
            derived=_qwen35,
            norm_shift=1.0,
            words=_QWEN35_WORDS,
            has_key_heads_in_turns=True,
        )
        for name, hub_name, model_type in (
            ("qwen35", "Qwen3_5ForCausalLM", "qwen3_5_text"),
            ("qwen35moe", "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text"),
        )
    ),
)
