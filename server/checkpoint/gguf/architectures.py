"""Keys of GGUF files as keys of config.json: a row for each architecture.

A row names the architecture in config.json, its keys that differ from the common ones, and values that a GGUF file
leaves out. Source of the rows: llama.cpp's conversion scripts (conversion/*.py; `find_hparam` for the common keys)
and its readers (src/models/*.cpp), as in llama-cpp-python 0.3.36; the architecture's configuration class in
transformers for names.
"""

from __future__ import annotations

from ...typed_json import shown
from .architecture import (
    FFN_SIZE,
    KV_HEADS,
    ROPE_FREQS,
    Architecture,
    Config,
    Read,
    keys,
    names_of,
    part_of_heads,
    window_or_none,
)
from .encoder_architectures import ENCODING
from .expert_architectures import BALANCED
from .files import ARCHITECTURE, GgufFiles
from .state_architectures import GRANITE, GRANITE_WORDS, STATES


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
_GEGLU: Config = {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
_SQUARE: Config = {"hidden_act": "relu2"}
_TANH: Config = {"hidden_act": "gelu_pytorch_tanh"}

MORE = (
    Architecture("jais2"),
    Architecture(
        "gemma4",
        "gemma4_text",
        _GEMMA4,
        _GEGLU | {"rope_scaling": None},
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


def _gemma_scale(largest: int) -> Read:
    """Return a function for the scale of scores: the size of a head, or the hidden size over the heads.

    The second is the scale of the family's largest model, which has `largest` layers.
    """

    def read(_: GgufFiles, config: Config) -> Config:
        is_largest = config.get("num_hidden_layers") == largest
        width = config["hidden_size"] // config["num_attention_heads"] if is_largest else config["head_dim"]
        return {"query_pre_attn_scalar": width}

    return read


def _llama(_: GgufFiles, config: Config) -> Config:
    """Mixtral is Llama with experts."""
    return names_of("mixtral") | {"sliding_window": None} if config.get("num_local_experts") else {}


def _granite_moe(_: GgufFiles, config: Config) -> Config:
    """Return the network that all tokens take, of files that have one."""
    if not (size := config.get("shared_expert_intermediate_size")):
        return {}
    return names_of("granitemoeshared") | {"shared_intermediate_size": size}


def _gpt_oss(_: GgufFiles, config: Config) -> Config:
    """Set `truncate`, which the model's own config.json has: the ends of YaRN's ramp are not rounded."""
    rope = config.get("rope_scaling")
    return {"rope_scaling": {**rope, "truncate": False}} if rope else {}


def _llama4(_: GgufFiles, config: Config) -> Config:
    """Derive attention: a window of 0 means that no layer has chunks and all layers are rotated."""
    plain: Config = {}
    if config.get("sliding_window") == 0:
        layers = config["num_hidden_layers"]
        plain = {"layer_types": ["full_attention"] * layers, "no_rope_layers": [1] * layers}
    return {"use_qk_norm": config.get("num_local_experts") != _MAVERICK_EXPERTS, **plain}


_MAVERICK_EXPERTS = 128  # the one model of its family without norms of heads
_LOCAL_EXPERTS = keys("expert_count=num_local_experts")
_NEOX = keys("rope.freq_base=rotary_emb_base use_parallel_residual=use_parallel_residual")
_LLAMA4 = _LOCAL_EXPERTS | keys(
    "feed_forward_length=intermediate_size_mlp expert_feed_forward_length=intermediate_size"
    " interleave_moe_layer_step=interleave_moe_layer_step"
)
_LOCAL_BASE = keys("rope.freq_base_swa=rope_local_base_freq")
_CHOSEN: Config = {"norm_topk_prob": True}  # llama.cpp normalizes the weights of chosen experts, though no key says so

ARCHITECTURES = {
    row.name: row
    for row in (
        Architecture("llama", "llama", _LOCAL_EXPERTS, read=_llama, has_rotary_pairs=True),
        Architecture("internlm2", "llama", has_rotary_pairs=True),  # with q, k and v apart
        Architecture("qwen2"),
        Architecture("qwen2vl", "qwen2"),  # of text alone
        Architecture("qwen3"),
        Architecture("qwen3vl", "qwen3"),  # of text alone
        Architecture("qwen2moe", "qwen2_moe"),
        Architecture("qwen3moe", "qwen3_moe", values=_CHOSEN),
        Architecture("qwen3vlmoe", "qwen3_moe", values=_CHOSEN),  # of text alone
        Architecture("gemma", values=_GEGLU, norm_shift=1.0),
        Architecture("gemma2", values=_GEGLU, read=_gemma_scale(46), norm_shift=1.0),
        Architecture("gemma3", "gemma3_text", _LOCAL_BASE, _GEGLU, _gemma_scale(62), norm_shift=1.0),
        Architecture("phi3", read=window_or_none),
        Architecture("granite", "granite", GRANITE, has_rotary_pairs=True),
        Architecture(
            "granitemoe", "granitemoe", GRANITE, read=_granite_moe, has_rotary_pairs=True, words=GRANITE_WORDS
        ),
        Architecture("llama4", "llama4_text", _LLAMA4, read=_llama4),
        Architecture("phi2", "phi", read=part_of_heads()),
        Architecture("gptneox", "gpt_neox", _NEOX, read=part_of_heads("rotary_pct"), has_heads_apart=True),
        Architecture("olmo2", read=lambda _, config: names_of("olmo3") if config.get("sliding_window") else {}),
        Architecture("olmoe"),
        Architecture("smollm3", has_rotary_pairs=True),
        Architecture("command-r", "cohere"),
        Architecture("cohere2"),
        Architecture("gpt-oss", "gpt_oss", _LOCAL_EXPERTS, read=_gpt_oss),
        Architecture("gpt2", values={"activation_function": "gelu_new"}),
        *MORE,
        *BALANCED,
        *STATES,
        *ENCODING,
    )
}


def architecture_of(files: GgufFiles) -> Architecture:
    """Return the row of a file. Raises CheckpointError for an architecture without a row."""
    name = files.metadata.get(ARCHITECTURE)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise files.error(f"{ARCHITECTURE} is {shown(name)}: read are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
