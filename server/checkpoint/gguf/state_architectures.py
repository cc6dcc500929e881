"""Rows of GGUF architectures in which layers keep a state.

Source: as in architectures.py.
"""

from __future__ import annotations

from typing import Any

from .architecture import FFN_SIZE, KV_HEADS, Architecture, Config, Read, keys, names_of
from .expert_architectures import BIAS, ROUTED
from .files import GgufFiles

RECURRENT = "attention.recurrent_layers"


def _kinds(state: str) -> Read:
    """Return a function for `layer_types`, in which `state` is a layer without attention: it has no KV heads."""

    def read(files: GgufFiles, config: Config) -> Config:
        heads = files.by_layer(KV_HEADS, config["num_hidden_layers"])
        types = ["full_attention" if count else state for count in heads]
        return {"num_key_value_heads": max(heads) or None, "layer_types": types}

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


def _mamba(files: GgufFiles, config: Config) -> Config:
    """Return the sizes of heads of Mamba-2; weights have the multipliers of Falcon-H1 in them."""
    size = files.number("ssm.inner_size") or 0
    return {
        "mamba_d_ssm": size or None,
        "mamba_d_head": size // (config.get("mamba_n_heads") or 1),
        "mamba_expand": size / config["hidden_size"],
        "mamba_conv_bias": "blk.0.ssm_conv1d.bias" in files.entries,
        "mamba_rms_norm": "blk.0.ssm_norm.weight" in files.entries,
        "mamba_norm_before_gate": False,
    }


def _granite(files: GgufFiles, config: Config) -> Config:
    """Return Granite 4's kinds of layers and sizes; a file without multipliers is of Bamba."""
    found = _kinds("mamba")(files, config) | _mamba(files, config)
    if not files.states("embedding_scale"):
        bamba = names_of("bamba") | {"partial_rotary_factor": config.get("partial_rotary_factor", 1.0)}
        return found | bamba
    rotates = files.metadata.get("granitehybrid.rope.scaling.finetuned", True)
    size = config.get("shared_intermediate_size") or config["intermediate_size"]
    found |= {"shared_intermediate_size": size, "position_embedding_type": "rope" if rotates else "nope"}
    return found | {"num_local_experts": config.get("num_local_experts", 0)}


def _nemotron_h(files: GgufFiles, config: Config) -> Config:
    """Return the branch of each layer: one without KV heads and without a network keeps a state."""
    layers = config["num_hidden_layers"] - (files.number("nextn_predict_layers") or 0)
    heads, sizes = (files.by_layer(key, config["num_hidden_layers"])[:layers] for key in (KV_HEADS, FFN_SIZE))
    network = "moe" if config.get("n_routed_experts") else "mlp"
    kinds = ["attention" if count else network if size else "mamba" for count, size in zip(heads, sizes, strict=True)]
    width = (files.number("ssm.inner_size") or 0) // (config.get("mamba_num_heads") or 1)
    found = {"num_key_value_heads": max(heads) or None, "intermediate_size": max(sizes) or None}
    return found | {"layers_block_type": kinds, "mamba_head_dim": width}


GRANITE = keys(
    "attention.scale=attention_multiplier embedding_scale=embedding_multiplier residual_scale=residual_multiplier"
    " logit_scale=logits_scaling expert_count=num_local_experts"
)
GRANITE_WORDS = {
    ".router.": ".router.layer.", ".gate_proj.": ".w1.", ".up_proj.": ".w3.", ".down_proj.": ".w2."
}  # fmt: skip
_LFM2 = keys("shortconv.l_cache=conv_L_cache leading_dense_block_count=num_dense_layers")
_LFM2_WORDS = {
    f"feed_forward.experts.w{i}": f"mlp.experts.{name}_proj" for i, name in enumerate(("gate", "down", "up"), 1)
}
_ADJUSTED: Config = {"block_auto_adjust_ff_dim": False}  # the file has the size that follows
_DELTA = keys(
    "ssm.conv_kernel=linear_conv_kernel_dim ssm.state_size=linear_key_head_dim ssm.group_count=linear_num_key_heads"
    " ssm.time_step_rank=linear_num_value_heads full_attention_interval=full_attention_interval"
)
_MAMBA = keys(
    "ssm.conv_kernel=mamba_d_conv ssm.state_size=mamba_d_state ssm.group_count=mamba_n_groups"
    " ssm.time_step_rank=mamba_n_heads"
)
_HYBRID = _MAMBA | GRANITE | keys("expert_shared_feed_forward_length=shared_intermediate_size")
_NEMOTRON_H = keys(
    "ssm.conv_kernel=conv_kernel ssm.state_size=ssm_state_size ssm.group_count=n_groups"
    " ssm.time_step_rank=mamba_num_heads"
)
_EXPERTS = keys(
    "shared_experts.up_proj.weight=ffn_up_shexp.weight shared_experts.down_proj.weight=ffn_down_shexp.weight"
    " up_proj.weight=ffn_up_exps.weight down_proj.weight=ffn_down_exps.weight"
)
_SHARED = keys("expert_shared_feed_forward_length=moe_shared_expert_intermediate_size")
_STEP = {".dt_bias": ".dt_proj.bias"}  # in the package's words


_GATED: dict[str, Any] = {"read": _delta, "norm_shift": 1.0, "words": _STEP}

STATES = (
    Architecture("lfm2", "lfm2", _LFM2, _ADJUSTED, _kinds("conv"), (KV_HEADS,)),
    Architecture(
        *("lfm2moe", "lfm2_moe", _LFM2, _ADJUSTED, _kinds("conv"), (KV_HEADS,)),
        words={"expert_bias": "expert_bias.bias", **_LFM2_WORDS},
    ),
    Architecture("qwen35", "qwen3_5_text", _DELTA, **_GATED, has_key_heads_in_turns=True),
    Architecture("qwen35moe", "qwen3_5_moe_text", _DELTA, **_GATED, has_key_heads_in_turns=True),
    Architecture("qwen3next", "qwen3_next", _DELTA, **_GATED),
    Architecture(
        *("granitehybrid", "granitemoehybrid", _HYBRID),
        read=_granite,
        unread=(KV_HEADS,),
        has_rotary_pairs=True,
        words=_STEP | GRANITE_WORDS,
    ),
    Architecture("falcon-h1", "falcon_h1", _MAMBA, read=_mamba, words=_STEP),
    Architecture(
        *("nemotron_h", "nemotron_h", _NEMOTRON_H, {}, _nemotron_h, (KV_HEADS, FFN_SIZE)),
        has_rotary_pairs=True,
        words=_STEP,
    ),
    Architecture(
        *("nemotron_h_moe", "nemotron_h", _NEMOTRON_H | ROUTED | _SHARED, {}, _nemotron_h, (KV_HEADS, FFN_SIZE)),
        has_rotary_pairs=True,
        words=_STEP | BIAS,
        in_block=_EXPERTS,
    ),
)
