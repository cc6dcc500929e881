"""Tiny random models with latent attention, made by transformers. Head counts, head sizes and ranks divide badly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.parity.test_state_layers import EXPERTS, QWEN
from tools.random_checkpoint.tokenizer import tokenizer_json

VOCAB, MAX_TOKENS = 384, 256

_SIZES = {"kv_lora_rank": 40, "q_lora_rank": 52, "qk_nope_head_dim": 18, "qk_rope_head_dim": 10, "v_head_dim": 13}
_EXPERTS = {
    "n_routed_experts": 12,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
}
_GROUPS = {"n_group": 4, "topk_group": 2}
_INDEXER = {"index_topk": MAX_TOKENS, "index_n_heads": 2, "index_head_dim": 16}


def _yarn(mscale: float, mscale_all_dim: float) -> dict[str, Any]:
    rope = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0, "beta_fast": 4.0, "beta_slow": 0.5}
    original = {"original_max_position_embeddings": 64}
    return {"rope_parameters": {**rope, **original, "mscale": mscale, "mscale_all_dim": mscale_all_dim}}


# model_type, heads, keys of config.json.
FAMILIES: dict[str, tuple[str, int, dict[str, Any]]] = {
    # Queries without a narrow projection; the largest of all logits win.
    "deepseek-v2-lite": (
        "deepseek_v2",
        5,
        _SIZES | _EXPERTS | _yarn(0.707, 0.9) | {"q_lora_rank": None, "topk_method": "greedy"},
    ),
    "deepseek-v2": (
        "deepseek_v2",
        3,
        _SIZES
        | _EXPERTS
        | _GROUPS
        | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 1.7, "attention_bias": True},
    ),
    "deepseek-v3": ("deepseek_v3", 7, _SIZES | _EXPERTS | _GROUPS | _yarn(1.0, 1.0)),
    "kimi-k2": ("deepseek_v3", 4, _SIZES | _EXPERTS | {"n_group": 1, "topk_group": 1, "rope_theta": 50_000.0}),
    "glm-4.7-flash": ("glm4_moe_lite", 5, _SIZES | _EXPERTS | {"norm_topk_prob": False, "num_hidden_layers": 2}),
    # The longest context that is served is no longer than index_topk: attention reads everything.
    "deepseek-v3.2": ("deepseek_v32", 3, _SIZES | _EXPERTS | _GROUPS | _INDEXER),
    "glm-5": ("glm_moe_dsa", 5, _SIZES | _EXPERTS | _INDEXER | {"v_head_dim": 33}),
    "minicpm3": ("minicpm3", 5, _SIZES | {"scale_emb": 3.0, "scale_depth": 1.1, "dim_model_base": 48}),
    "youtu": ("youtu", 3, _SIZES | {"rope_interleave": False, "num_hidden_layers": 1, "kv_lora_rank": 64}),
}


OTHERS: dict[str, tuple[str, int, dict[str, Any]]] = {  # without latent attention
    "glm-4.5": ("glm4_moe", 4, _EXPERTS | {"head_dim": 20, "use_qk_norm": True, "num_key_value_heads": 2}),
    "qwen3-next": ("qwen3_next", 3, QWEN | EXPERTS | {"vocab_size": VOCAB}),
    "qwen3.5": ("qwen3_5_text", 3, QWEN | {"vocab_size": VOCAB, "tie_word_embeddings": True}),
    "qwen3.6-moe": ("qwen3_5_moe_text", 3, QWEN | EXPERTS | {"vocab_size": VOCAB}),
}


def random_model(name: str, **changes: Any) -> Any:
    """Return transformers' model of a row with random weights, none of which is neutral."""
    kind, heads, options = (FAMILIES | OTHERS)[name]
    shared = {"vocab_size": VOCAB, "hidden_size": 60, "intermediate_size": 88, "num_hidden_layers": 3}
    counts = {"num_attention_heads": heads, "num_key_value_heads": heads, "max_position_embeddings": 2 * MAX_TOKENS}
    ids = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 1}
    config = transformers.AutoConfig.for_model(kind, **(shared | counts | ids | options | changes))
    torch.manual_seed(1)
    return randomized(transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval())


def randomized(model: Any) -> Any:
    """Fill a module with random weights, none of which is neutral."""
    with torch.no_grad():
        for each, values in (*model.named_parameters(), *model.named_buffers()):
            if "rotary" in each or "embed_scale" in each:
                continue
            is_gain = values.dim() == 1 and each.endswith("weight")
            values.copy_(is_gain + torch.randn_like(values) * 0.2)
    return model


def save(model: Any, directory: Path) -> Path:
    """Write the checkpoint of a model, with a tokenizer that has a token for each id."""
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_json(VOCAB)))
    return directory
