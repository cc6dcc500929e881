"""Tiny decoders with layers that keep a state: architecture, heads, KV heads, head size and further keys."""

from __future__ import annotations

from typing import Any

TinyShape = tuple[str, int, int, int, dict[str, Any]]

_ATTENDS_ONCE = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
_DELTA = {
    "layer_types": _ATTENDS_ONCE,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
_CONVOLVED = {"layer_types": ["conv", "full_attention", "conv", "conv"], "rope_theta": 1e4}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 14}

TINY_STATES: dict[str, TinyShape] = {
    "tiny-lfm2": ("Lfm2ForCausalLM", 8, 2, 8, _CONVOLVED),
    "tiny-lfm2-moe": ("Lfm2MoeForCausalLM", 8, 2, 8, _CONVOLVED | _EXPERTS | {"num_dense_layers": 1}),
    "tiny-qwen3-5": ("Qwen3_5ForCausalLM", 8, 2, 16, _DELTA),
    "tiny-qwen3-5-moe": (
        *("Qwen3_5MoeForCausalLM", 8, 2, 16),
        _DELTA | _EXPERTS | {"shared_expert_intermediate_size": 44},
    ),
    "tiny-qwen3-next": (
        *("Qwen3NextForCausalLM", 8, 2, 16),
        _DELTA | _EXPERTS | {"shared_expert_intermediate_size": 44, "mlp_only_layers": [1]},
    ),
    "tiny-bamba": ("BambaForCausalLM", 8, 2, 8, _MAMBA | {"attn_layer_indices": [1]}),
    "tiny-falcon-h1": ("FalconH1ForCausalLM", 8, 2, 8, _MAMBA | {"mamba_d_ssm": 128, "key_multiplier": 0.7}),
    "tiny-nemotron-h": (
        *("NemotronHForCausalLM", 8, 2, 8),
        {
            "layers_block_type": ["linear_attention", "full_attention", "linear_attention", "mlp"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 4,
            "ssm_state_size": 14,
        },
    ),
}
