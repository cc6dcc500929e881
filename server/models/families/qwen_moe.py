"""Qwen 1.5, 2 and 3 with experts on all layers but some, and in the older ones a gated network that all tokens take."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from neuronserve.server.models.config_values import Heads, Layers, Values, Width
from neuronserve.server.models.families.decoder import LayerType
from neuronserve.server.models.families.experts import Experts, LayerIndex, expert_fields, sparse_layers
from neuronserve.server.models.families.qwen import QwenConfig


class QwenMoeConfig(QwenConfig, kw_only=True):
    """Keys that both generations share."""

    decoder_sparse_step: Layers = 1
    mlp_only_layers: tuple[LayerIndex, ...] = ()
    num_experts: Experts = 128
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Width = 768
    norm_topk_prob: bool = False

    def features(self, values: Values) -> dict[str, Any]:
        chooses = sparse_layers(self.num_hidden_layers, self.decoder_sparse_step, self.mlp_only_layers)
        sizes = self.moe_intermediate_size, self.intermediate_size
        return {
            **super().features(values),
            **expert_fields(self.num_experts, self.num_experts_per_tok, chooses, *sizes),
            "routing": "softmax_of_chosen" if self.norm_topk_prob else "softmax",
        }

    def _types(self) -> list[LayerType]:
        if self.layer_types is not None or not self.use_sliding_window:
            return super()._types()
        return ["sliding_attention"] * self.num_hidden_layers


class Qwen2MoeConfig(QwenMoeConfig, kw_only=True):
    """Qwen 1.5 and 2: the sigmoid of a projection weights the network that all tokens take."""

    intermediate_size: Width = 5632
    num_hidden_layers: Layers = 24
    num_attention_heads: Heads = 16
    num_key_value_heads: Heads | None = 16
    hidden_size: Width = 2048
    num_experts: Experts = 60
    num_experts_per_tok: Experts = 4
    moe_intermediate_size: Width = 1408
    shared_expert_intermediate_size: Annotated[int, Meta(ge=1, le=1 << 20)] = 5632
    qkv_bias: bool = True

    def features(self, values: Values) -> dict[str, Any]:
        return {
            **super().features(values),
            "has_qkv_bias": self.qkv_bias,
            "has_o_bias": False,
            "shared_intermediate_size": self.shared_expert_intermediate_size,
            "has_shared_gate": True,
        }

    def _types(self) -> list[LayerType]:
        """Every other layer slides, from the first to `max_window_layers`, where the file does not say."""
        if self.layer_types is not None or not self.use_sliding_window:
            return super()._types()
        layers, last = range(self.num_hidden_layers), self.max_window_layers
        return ["full_attention" if i % 2 or i >= last else "sliding_attention" for i in layers]


class Qwen3MoeConfig(QwenMoeConfig, kw_only=True):
    """Qwen 3: query and key heads are normed."""

    intermediate_size: Width = 6144
    num_hidden_layers: Layers = 24
    num_key_value_heads: Heads | None = 4
    hidden_size: Width = 2048
    num_local_experts: Experts | None = None  # another name of num_experts

    def features(self, values: Values) -> dict[str, Any]:
        if self.num_local_experts is not None:
            self.num_experts = self.num_local_experts
        return {**super().features(values), "has_qk_norm": True}
