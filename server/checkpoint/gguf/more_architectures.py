"""Rows of GGUF architectures whose config.json has keys of its own for the same values.

Source: as in architectures.py.
"""

from __future__ import annotations

from .architecture import ROPE_FREQS, Architecture, Config, Derive, Keys, part_of_heads, window_or_none
from .files import GgufFiles


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


def _gemma4(files: GgufFiles, config: Config) -> Config:
    """Return heads, networks and rotations by the kind of layer; layers without values have keys in their place."""
    layers, types = config["num_hidden_layers"], config.get("layer_types") or []
    heads, sizes = (files.by_layer(key, layers) for key in ("attention.head_count_kv", "feed_forward_length"))
    whole = [i for i, kind in enumerate(types) if kind == "full_attention"]
    local = [i for i in range(layers) if i not in whole]
    rotated = files.vector(ROPE_FREQS)
    share = 1.0 if rotated is None else float((rotated == 1).mean())
    ropes = {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": share, "rope_theta": config["rope_theta"]},
        "sliding_attention": {"rope_type": "default", "rope_theta": config.get("rope_local_base_freq", 10_000.0)},
    }
    return {
        "rope_parameters": ropes,
        "intermediate_size": sizes[0],
        "use_double_wide_mlp": sizes[-1] > sizes[0],
        "enable_moe_block": bool(config.get("num_experts")),
        "num_key_value_heads": heads[local[0] if local else 0],
        "num_global_key_value_heads": heads[whole[0] if whole else 0],
        "attention_k_eq_v": bool(whole) and f"blk.{whole[0]}.attn_v.weight" not in files.entries,
    }


def _hunyuan_moe(config: Config) -> Config:
    return {"num_shared_expert": config.get("num_shared_expert") or 1}


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
_GEMMA4: Keys = {
    "attention.key_length": "global_head_dim",
    "attention.key_length_swa": "head_dim",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "rope.freq_base_swa": "rope_local_base_freq",
    "expert_used_count": "top_k_experts",
}
_SQUARE: Config = {"hidden_act": "relu2"}

MORE = (
    Architecture("internlm2", "LlamaForCausalLM", "llama", has_rotary_pairs=True),  # with q, k and v apart
    Architecture("jais2", "Jais2ForCausalLM", "jais2"),
    Architecture(
        "gemma4",
        "Gemma4ForCausalLM",
        "gemma4_text",
        _GEMMA4,
        {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "rope_scaling": None},
        unread=("attention.head_count_kv", "feed_forward_length"),
        read=_gemma4,
        words={"experts.gate_proj": "experts.gate_up_proj", "experts.up_proj": "experts.gate_up_proj"},
        in_block={"router.per_expert_scale": "ffn_down_exps.scale", "router.scale": "ffn_gate_inp.scale"},
        has_own_heads=True,
    ),
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
)
