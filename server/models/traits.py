"""What an architecture does that no key of its config.json says: rows by `model_type`, for planning alone.

A row holds fields of `ModelSpec`. Source of each: the model's code in transformers (models/<model_type>/modeling_*.py,
and the defaults of its configuration class); where transformers has the type, it counts as many parameters. What a row
does not say is as in Llama: RMSNorm before attention and before a gated feed-forward network, one after the other,
rotary positions, no biases but those that keys state. A type without a row is refused: what it has is in no key.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]

_GELU: Row = {"activation": "gelu_tanh", "is_gated": False}
_ALL_BIASES: Row = {"has_qkv_bias": True, "has_o_bias": True, "has_ffn_bias": True}
_ATTENTION_BIASES: Row = {"has_qkv_bias": True, "has_o_bias": True}
_GEGLU: Row = {"activation": "gelu_tanh", "is_tied": True, "norm_offset": 1.0}
_BERT: Row = {
    "kind": "encoder",
    "norm": "layer",
    "activation": "gelu",
    "is_gated": False,
    "has_pre_norms": False,
    "has_stream_norms": True,
    "has_embedding_norm": True,
    "has_pooler": True,
    **_ALL_BIASES,
}

# Types that are like Llama in all that decides bytes and work.
LIKE_LLAMA = (
    "cwm",
    "deepseek",
    "ernie4_5",
    "exaone4",
    "exaone_moe",
    "flex_olmo",
    "glm",
    "glm4",
    "granite",
    "granitemoe",
    "granitemoeshared",
    "helium",
    "internlm3",
    "llama",
    "llama4_text",
    "minimax_m2",
    "ministral3",
    "mistral",
    "mixtral",
    "phi3",
    "seed_oss",
    "solar_open",
    "vaultgemma",
)

TRAITS: dict[str, Row] = {
    **{model_type: {} for model_type in LIKE_LLAMA},
    "afmoe": {"has_qk_norm": True, "has_post_norms": True, "has_attention_gate": True},
    "bert": _BERT,
    "bloom": {"norm": "layer", "has_embedding_norm": True, "is_tied": True, **_GELU, **_ALL_BIASES},
    "camembert": _BERT,
    "cohere": {"norm": "layer_no_bias", "parallel_norms": 1, "is_tied": True},
    "cohere2": {"norm": "layer_no_bias", "parallel_norms": 1, "is_tied": True},
    "dbrx": {"norm": "layer_no_bias"},
    "distilbert": {**_BERT, "has_pooler": False},
    "falcon": {"norm": "layer", "parallel_norms": 1, "is_tied": True, **_GELU, "activation": "gelu"},
    "gemma": _GEGLU,
    "gemma2": {**_GEGLU, "has_post_norms": True},
    "gemma3_text": {**_GEGLU, "has_post_norms": True, "has_qk_norm": True},
    "gpt2": {"norm": "layer", "is_tied": True, **_GELU, **_ALL_BIASES},
    "gpt_bigcode": {"norm": "layer", "is_tied": True, **_GELU, **_ALL_BIASES},
    "gpt_neox": {"norm": "layer", "parallel_norms": 2, **_GELU, **_ALL_BIASES, "activation": "gelu"},
    "gpt_oss": {
        "activation": "swiglu_clamped",
        "has_ffn_bias": True,
        "has_router_bias": True,
        "has_sinks": True,
        **_ATTENTION_BIASES,
    },
    "gptj": {"norm": "layer", "parallel_norms": 1, "has_ffn_bias": True, "has_head_bias": True, **_GELU},
    "modernbert": {
        "kind": "encoder",
        "norm": "layer_no_bias",
        "activation": "gelu",
        "has_embedding_norm": True,
        "has_first_norm": False,
    },
    "mpnet": _BERT,
    "olmo2": {"has_qk_norm": True, "has_wide_qk_norm": True, "has_pre_norms": False, "has_post_norms": True},
    "olmo3": {"has_qk_norm": True, "has_wide_qk_norm": True, "has_pre_norms": False, "has_post_norms": True},
    "olmoe": {"has_qk_norm": True, "has_wide_qk_norm": True},
    "opt": {"norm": "layer", "is_tied": True, **_GELU, **_ALL_BIASES, "activation": "relu"},
    "phi": {"norm": "layer", "parallel_norms": 1, "has_head_bias": True, **_GELU, **_ALL_BIASES},
    "phimoe": {"norm": "layer", "has_head_bias": True, **_ATTENTION_BIASES},
    "qwen2": {"has_qkv_bias": True},
    "qwen2_moe": {"has_qkv_bias": True, "has_shared_gate": True},
    "qwen3": {"has_qk_norm": True},
    "qwen3_moe": {"has_qk_norm": True},
    "roberta": _BERT,
    "smollm3": {"is_tied": True},
    "stablelm": {"norm": "layer"},
    "starcoder2": {"norm": "layer", "is_tied": True, **_GELU, **_ALL_BIASES},
    "xlm-roberta": _BERT,
}

# Learned positions, by `model_type`: rows of the table beyond the positions that the configuration states, and stated
# positions that are no token's, since the first real one comes after the padding's.
LEARNED_POSITIONS: dict[str, tuple[int, int]] = {
    "bert": (0, 0),
    "camembert": (0, 2),
    "distilbert": (0, 0),
    "gpt2": (0, 0),
    "gpt_bigcode": (0, 0),
    "mpnet": (0, 2),
    "opt": (2, 0),
    "roberta": (0, 2),
    "xlm-roberta": (0, 2),
}

# Types whose attention knows distances by a slope for each head, without an embedding of positions.
ALIBI = ("bloom",)

# Keys that older files of a `model_type` leave out, by their first names in planned.py.
DEFAULT_KEYS: dict[str, Row] = {
    "bloom": {"max_position_embeddings": 2048},  # trained length (arXiv 2211.05100); ALiBi has no limit
    "cohere2": {"sliding_window_pattern": 4},
    "gemma2": {"sliding_window_pattern": 2},
    "gemma3_text": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "sliding_window_pattern": 6,
    },
    "gpt_oss": {"sliding_window_pattern": 2},
    "llama4_text": {"sliding_window_pattern": 4, "num_shared_experts": 1},
}

# Types of layer_types with a window; the first layer of each period attends to everything where it is not the last.
WINDOWED = ("sliding_attention", "chunked_attention")
FIRST_IS_GLOBAL = ("modernbert",)
