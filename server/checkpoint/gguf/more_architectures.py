"""Rows of GGUF architectures whose config.json has values that follow from several keys.

Source: as in architectures.py.
"""

from __future__ import annotations

from .architecture import FFN_SIZE, KV_HEADS, ROPE_FREQS, Architecture, Config, keys, part_of_heads, window_or_none
from .files import GgufFiles


def _minicpm(_: GgufFiles, config: Config) -> Config:
    """Derive the values that the multipliers were made of, at the precision of a config.json."""
    depth = config.get("residual_scale", 1.0) * config["num_hidden_layers"] ** 0.5
    base = config["hidden_size"] / config.get("logits_scaling", config["hidden_size"])
    return {"scale_depth": float(f"{depth:.5g}"), "dim_model_base": round(base)}


def _gemma4(files: GgufFiles, config: Config) -> Config:
    """Return heads, networks and rotations by the kind of layer; layers without values have keys in their place."""
    layers, types = config["num_hidden_layers"], config.get("layer_types") or []
    heads, sizes = (files.by_layer(key, layers) for key in (KV_HEADS, FFN_SIZE))
    whole = [i for i, kind in enumerate(types) if kind == "full_attention"]
    local = [i for i in range(layers) if i not in whole]
    rotated = files.vector(ROPE_FREQS)
    share = 1.0 if rotated is None else float((rotated == 1).mean())
    base, local_base = (config.get(key, 10_000.0) for key in ("rope_theta", "rope_local_base_freq"))
    ropes = {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": share, "rope_theta": base},
        "sliding_attention": {"rope_type": "default", "rope_theta": local_base},
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


_MINICPM = keys("embedding_scale=scale_emb residual_scale=residual_scale logit_scale=logits_scaling")
_HUNYUAN_MOE = keys("expert_used_count=moe_topk expert_shared_count=num_shared_expert")
_CLIP = keys("attention.clamp_kqv=clip_qkv attention.max_alibi_bias=alibi_bias_max")
_GEMMA4 = keys(
    "attention.key_length=global_head_dim attention.key_length_swa=head_dim rope.freq_base_swa=rope_local_base_freq"
    " attention.shared_kv_layers=num_kv_shared_layers embedding_length_per_layer_input=hidden_size_per_layer_input"
    " expert_used_count=top_k_experts"
)
_GEGLU: Config = {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "rope_scaling": None}
_SQUARE: Config = {"hidden_act": "relu2"}
_TANH: Config = {"hidden_act": "gelu_pytorch_tanh"}

MORE = (
    Architecture("jais2"),
    Architecture(
        "gemma4",
        "gemma4_text",
        _GEMMA4,
        _GEGLU,
        _gemma4,
        unread=(KV_HEADS, FFN_SIZE),
        has_own_heads=True,
        words={"experts.gate_proj": "experts.gate_up_proj", "experts.up_proj": "experts.gate_up_proj"},
        in_block={"router.per_expert_scale": "ffn_down_exps.scale", "router.scale": "ffn_gate_inp.scale"},
    ),
    Architecture("seed_oss"),
    Architecture("glm4", read=part_of_heads()),
    Architecture("exaone"),
    Architecture("exaone4", read=window_or_none),
    Architecture("minicpm", "minicpm", _MINICPM, read=_minicpm, has_rotary_pairs=True),
    Architecture("arcee", values=_SQUARE, has_rotary_pairs=True),
    Architecture("nemotron", values=_SQUARE, read=part_of_heads(), norm_shift=1.0),
    Architecture(
        "stablelm",
        "stablelm",
        keys("use_parallel_residual=use_parallel_residual"),
        read=lambda files, config: part_of_heads()(files, config) | {"use_qkv_bias": config["attention_bias"]},
    ),
    Architecture("olmo", "olmo", _CLIP, has_rotary_pairs=True),
    Architecture("ernie4_5", read=lambda _, config: {"use_bias": config["attention_bias"]}),
    Architecture("hunyuan-dense", "hunyuan_v1_dense"),
    Architecture("hunyuan-moe", "hunyuan_v1_moe", _HUNYUAN_MOE),
    Architecture("starcoder2", values=_TANH),
    Architecture(
        "starcoder", "gpt_bigcode", read=lambda _, config: {"multi_query": config.get("num_key_value_heads") == 1}
    ),
    Architecture(
        "falcon",
        read=lambda _, config: {
            "multi_query": not (has := config["num_key_value_heads"] > 1),
            "new_decoder_architecture": has,
        },
        has_heads_apart=True,
    ),
    Architecture("bloom", words={"transformer.": ""}, has_heads_apart=True),
    Architecture(
        "mpt", "mpt", _CLIP, read=lambda _, config: {"attn_config": {"alibi": "alibi_bias_max" in config} | config}
    ),
)
