"""Tiny shapes of families that differ from Llama around attention, in the form of expert_shapes.py."""

from __future__ import annotations

from typing import Any

GELU = "gelu_pytorch_tanh"
ROPE_512 = {"rope_type": "longrope", "rope_theta": 10_000.0, "partial_rotary_factor": 0.75, "attention_factor": 1.2}
ROPE_64 = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "beta_slow": 0.5, "attention_factor": 1.1}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5}
GRANITE4: dict[str, Any] = {
    "shared_intermediate_size": 112,
    "layer_types": ["attention"] * 4,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.22,
    "logits_scaling": 1.6,
    "mamba_n_heads": 8,
}

TINY_ATTENTION: dict[str, tuple[str, int, int, int, dict[str, Any]]] = {
    "tiny-gemma": ("GemmaForCausalLM", 4, 1, 32, {"hidden_act": GELU, "tie_word_embeddings": True}),
    # Caps that scores and logits reach.
    "tiny-gemma2": (
        "Gemma2ForCausalLM",
        4,
        2,
        32,
        {
            "hidden_act": GELU,
            "hidden_activation": GELU,
            "sliding_window": 19,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.5,
            "tie_word_embeddings": True,
        },
    ),
    # Short factors: the served length is the trained length. Three quarters of a head are rotated.
    "tiny-phi3": (
        "Phi3ForCausalLM",
        4,
        2,
        16,
        {
            "original_max_position_embeddings": 512,
            "sliding_window": 21,
            "rope_parameters": ROPE_512 | {"short_factor": [1.0, 1.1, 1.3, 1.7, 2.5, 4.0], "long_factor": [1.0] * 6},
        },
    ),
    # Long factors for every text longer than one token, on which rotation has no effect.
    "tiny-phi3-long": (
        "Phi3ForCausalLM",
        4,
        4,
        16,
        {
            "original_max_position_embeddings": 16,
            "rope_scaling": {
                "type": "longrope",
                "factor": 4.0,
                "short_factor": [1.0] * 8,
                "long_factor": [1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 9.0, 16.0],
            },
        },
    ),
    "tiny-granite": (
        "GraniteForCausalLM",
        8,
        2,
        16,
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.125,
            "residual_multiplier": 0.22,
            "logits_scaling": 1.6,
            "tie_word_embeddings": True,
        },
    ),
    # Norms over all heads together, with fewer KV heads than cores.
    "tiny-olmo2": ("Olmo2ForCausalLM", 8, 2, 8, {}),
    "tiny-olmo3": (
        "Olmo3ForCausalLM",
        8,
        8,
        8,
        {
            "sliding_window": 19,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "rope_scaling": ROPE_64 | {"original_max_position_embeddings": 64},
            "rope_theta": 500_000.0,
        },
    ),
    "tiny-ministral": (
        "MinistralForCausalLM",
        8,
        2,
        16,
        {
            "sliding_window": 19,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    # Temperatures that grow every 64 tokens.
    "tiny-ministral3": (
        "Ministral3ForCausalLM",
        8,
        2,
        16,
        {
            "rope_parameters": ROPE_64
            | {"original_max_position_embeddings": 64, "rope_theta": 1e4, "llama_4_scaling_beta": 0.4},
        },
    ),
    # The attention of Llama 4 without its experts: chunks that no block divides, and growing temperatures.
    "tiny-llama4-dense": (
        "Llama4ForCausalLM",
        8,
        2,
        16,
        {
            "intermediate_size_mlp": 176,
            "moe_layers": [],
            "no_rope_layers": [1, 1, 0, 1],
            "attention_chunk_size": 21,
            "floor_scale": 8,
            "attn_scale": 0.3,
            "rope_parameters": LLAMA3 | {"original_max_position_embeddings": 64},
        },
    ),
    "tiny-smollm3": ("SmolLM3ForCausalLM", 8, 2, 8, {"no_rope_layers": [1, 0, 1, 0], "rope_theta": 5e4}),
    # Tensor names of a model with experts, but none: only the network beside them is there.
    "tiny-granite4": (
        "GraniteMoeHybridForCausalLM",
        8,
        2,
        8,
        {**GRANITE4, "num_local_experts": 0, "num_experts_per_tok": 0, "position_embedding_type": "rope"},
    ),
}
