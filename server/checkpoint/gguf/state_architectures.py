"""Rows of GGUF architectures in which layers keep a state.

Source: as in architectures.py.
"""

from __future__ import annotations

from .architecture import Architecture, Config, Keys, Read, part_of_heads
from .files import GgufFiles

KV_HEADS, FFN_SIZE, RECURRENT = "attention.head_count_kv", "feed_forward_length", "attention.recurrent_layers"


def _attends(files: GgufFiles, config: Config) -> tuple[list[int], Config]:
    """Return the number of KV heads of each layer, 0 where it does not attend, and the keys of those that attend."""
    heads = files.by_layer(KV_HEADS, config["num_hidden_layers"])
    return heads, {"num_key_value_heads": max(heads) or None}


def _kinds(state: str) -> Read:
    """Return a function for `layer_types`, in which `state` is a layer without attention."""

    def read(files: GgufFiles, config: Config) -> Config:
        heads, keys = _attends(files, config)
        return keys | {"layer_types": ["full_attention" if count else state for count in heads]}

    return read


def _delta(files: GgufFiles, config: Config) -> Config:
    """Return the size of value heads and the kinds of layers, without layers that predict further tokens."""
    layers = config["num_hidden_layers"] - (files.number("nextn_predict_layers") or 0)
    found: Config = {"num_hidden_layers": layers}
    if heads := config.get("linear_num_value_heads"):
        found["linear_value_head_dim"] = (files.number("ssm.inner_size") or 0) // heads
    if files.states(RECURRENT):
        flags = files.by_layer(RECURRENT, config["num_hidden_layers"])[:layers]
        found["layer_types"] = ["linear_attention" if flag else "full_attention" for flag in flags]
    return found


def _granite(files: GgufFiles, config: Config) -> Config:
    """Return Granite 4's kinds of layers and multipliers; a file without multipliers is of Bamba."""
    found = _kinds("mamba")(files, config) | _mamba(files, config)
    if not files.states("embedding_scale"):
        return found | {"architectures": ["BambaForCausalLM"], "model_type": "bamba"}
    sizes = config.get("shared_intermediate_size") or config["intermediate_size"]
    rotates = files.metadata.get("granitehybrid.rope.scaling.finetuned", True)
    kind = "rope" if rotates else "nope"
    experts = config.get("num_local_experts", 0)
    return found | {"shared_intermediate_size": sizes, "position_embedding_type": kind, "num_local_experts": experts}


def _mamba(files: GgufFiles, config: Config) -> Config:
    """Return the sizes of heads of Mamba-2; weights have the multipliers of Falcon-H1 in them."""
    size, heads = files.number("ssm.inner_size") or 0, config.get("mamba_n_heads") or 1
    return {
        "mamba_d_ssm": size or None,
        "mamba_d_head": size // heads,
        "mamba_expand": size / config["hidden_size"],
        "mamba_conv_bias": "blk.0.ssm_conv1d.bias" in files.entries,
        "mamba_rms_norm": "blk.0.ssm_norm.weight" in files.entries,
        "mamba_norm_before_gate": False,
    }


def _nemotron_h(files: GgufFiles, config: Config) -> Config:
    """Return the branch of each layer: one without KV heads and without a network keeps a state."""
    heads, keys = _attends(files, config)
    sizes = files.by_layer(FFN_SIZE, config["num_hidden_layers"])
    kinds = ["attention" if count else "mlp" if size else "mamba" for count, size in zip(heads, sizes, strict=True)]
    inner = (files.number("ssm.inner_size") or 0) // (config.get("mamba_num_heads") or 1)
    eps = files.number("attention.layer_norm_rms_epsilon") or files.number("attention.layer_norm_epsilon")
    sizes_of_parts = {"intermediate_size": max(sizes) or None, "mamba_head_dim": inner, "layer_norm_epsilon": eps}
    return keys | sizes_of_parts | {"layers_block_type": kinds}


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
_DELTA: Keys = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "full_attention_interval": "full_attention_interval",
}
_MAMBA: dict[str, str] = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
}
GRANITE: dict[str, str] = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "expert_count": "num_local_experts",
}
GRANITE_WORDS: dict[str, str] = {
    ".router.": ".router.layer.",
    ".gate_proj.": ".w1.",
    ".up_proj.": ".w3.",
    ".down_proj.": ".w2.",
}
_NEMOTRON_H: Keys = {
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "ssm_state_size",
    "ssm.group_count": "n_groups",
    "ssm.time_step_rank": "mamba_num_heads",
}
_STEP: dict[str, str] = {".dt_bias": ".dt_proj.bias"}  # in the package's words

STATES = (
    Architecture("lfm2", "Lfm2ForCausalLM", "lfm2", _LFM2, _ADJUSTED, unread=(KV_HEADS,), read=_kinds("conv")),
    Architecture(
        "lfm2moe",
        "Lfm2MoeForCausalLM",
        "lfm2_moe",
        _LFM2,
        _ADJUSTED,
        words=_LFM2_WORDS,
        unread=(KV_HEADS,),
        read=_kinds("conv"),
    ),
    *(
        Architecture(
            name,
            hub_name,
            model_type,
            _DELTA,
            norm_shift=1.0,
            words=_STEP,
            has_key_heads_in_turns=is_in_turns,
            read=_delta,
        )
        for name, hub_name, model_type, is_in_turns in (
            ("qwen35", "Qwen3_5ForCausalLM", "qwen3_5_text", True),
            ("qwen35moe", "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", True),
            ("qwen3next", "Qwen3NextForCausalLM", "qwen3_next", False),
        )
    ),
    Architecture(
        "granitehybrid",
        "GraniteMoeHybridForCausalLM",
        "granitemoehybrid",
        _MAMBA | GRANITE | {"expert_shared_feed_forward_length": "shared_intermediate_size"},
        derived=part_of_heads("partial_rotary_factor"),
        has_rotary_pairs=True,
        words=_STEP | GRANITE_WORDS,
        unread=(KV_HEADS,),
        read=_granite,
    ),
    Architecture("falcon-h1", "FalconH1ForCausalLM", "falcon_h1", _MAMBA, words=_STEP, read=_mamba),
    Architecture(
        "nemotron_h",
        "NemotronHForCausalLM",
        "nemotron_h",
        _NEMOTRON_H,
        has_rotary_pairs=True,
        words=_STEP,
        unread=(KV_HEADS, FFN_SIZE),
        read=_nemotron_h,
    ),
)
