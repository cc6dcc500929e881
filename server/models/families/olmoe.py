"""OLMoE: experts on every layer, norms of queries and keys over all heads together."""

from __future__ import annotations

from typing import Any

from neuronserve.server.models.config_values import Epsilon, Heads, Layers, Positions, Values, Vocab, Width, refuse
from neuronserve.server.models.families.decoder import DecoderConfig
from neuronserve.server.models.families.experts import Experts, expert_fields


class OlmoeConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of OlmoeConfig."""

    vocab_size: Vocab = 50_304
    hidden_size: Width = 2048
    intermediate_size: Width = 2048
    num_hidden_layers: Layers = 16
    num_attention_heads: Heads = 16
    max_position_embeddings: Positions = 4096
    rms_norm_eps: Epsilon = 1e-5
    clip_qkv: float | None = None
    num_experts: Experts = 64
    num_experts_per_tok: Experts = 8
    norm_topk_prob: bool = False

    def features(self, values: Values) -> dict[str, Any]:
        if self.clip_qkv is not None:
            raise refuse("clip_qkv", self.clip_qkv, "not supported")
        chooses, size = [True] * self.num_hidden_layers, self.intermediate_size
        return {
            **super().features(values),
            **expert_fields(self.num_experts, self.num_experts_per_tok, chooses, size, size),
            "routing": "softmax_of_chosen" if self.norm_topk_prob else "softmax",
            "has_qk_norm": True,
            "has_wide_qk_norm": True,
        }
