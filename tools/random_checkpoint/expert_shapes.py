"""Tiny shapes of families with experts: architecture, query heads, KV heads, head size, keys of config.json."""

from __future__ import annotations

from typing import Any

from tools.random_checkpoint.attention_shapes import GRANITE4

TINY_EXPERTS: dict[str, tuple[str, int, int, int, dict[str, Any]]] = {
    "tiny-mixtral": (
        "MixtralForCausalLM",
        8,
        2,
        16,
        {"intermediate_size": 112, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    # One layer without experts, a gated network beside the experts; weights are not normalised.
    "tiny-qwen2-moe": (
        "Qwen2MoeForCausalLM",
        4,
        4,
        16,
        {
            "num_experts": 12,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 144,
            "mlp_only_layers": [1],
            "norm_topk_prob": False,
        },
    ),
    # More experts than a vector has lanes; tokens go to half of them.
    "tiny-qwen3-moe": (
        "Qwen3MoeForCausalLM",
        8,
        2,
        32,
        {"num_experts": 20, "num_experts_per_tok": 10, "moe_intermediate_size": 40, "norm_topk_prob": True},
    ),
    "tiny-olmoe": ("OlmoeForCausalLM", 8, 4, 8, {"num_experts": 8, "num_experts_per_tok": 3, "rope_theta": 10_000.0}),
    # Biases everywhere, sinks, a window on every other layer; expert sizes that no vector divides.
    "tiny-gpt-oss": (
        "GptOssForCausalLM",
        8,
        2,
        16,
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "intermediate_size": 72,
            "sliding_window": 19,
            "rope_theta": 10_000.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 8.0,
                "beta_fast": 4.0,
                "beta_slow": 0.5,
                "truncate": False,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    # Weights multiply the experts' inputs; a network beside the experts takes all tokens; dense layers alternate.
    "tiny-llama4": (
        "Llama4ForCausalLM",
        8,
        2,
        16,
        {
            "intermediate_size": 72,
            "intermediate_size_mlp": 176,
            "num_local_experts": 8,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "no_rope_layers": [1, 1, 0, 1],
            "attention_chunk_size": 21,
            "floor_scale": 8,
            "attn_scale": 0.3,
            "rope_theta": 500_000.0,
        },
    ),
    "tiny-granite-moe": (
        "GraniteMoeForCausalLM",
        8,
        2,
        8,
        {
            "intermediate_size": 72,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.125,
            "residual_multiplier": 0.22,
            "logits_scaling": 1.6,
            "tie_word_embeddings": True,
        },
    ),
    # Experts beside a network of another size that takes all tokens. No layer is rotated.
    "tiny-granite4-moe": (
        "GraniteMoeHybridForCausalLM",
        8,
        2,
        8,
        {
            **GRANITE4,
            "intermediate_size": 48,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "position_embedding_type": "nope",
            "tie_word_embeddings": True,
        },
    ),
}
