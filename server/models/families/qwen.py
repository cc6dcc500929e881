"""Qwen 1.5, 2, 2.5 and 3, dense and with experts: biases on q, k and v, or norms of heads; windows on some layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from ..config_values import MAX_LAYERS, MAX_POSITIONS, Layers, Width, refuse
from ..layer import AttentionSpec, ExpertsSpec, RopeSpec
from .decoder import DecoderConfig
from .experts import ExpertCount, LayerIndex, softmax_experts, sparse_layers
from .family import LayerType


class QwenConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of all generations."""

    use_sliding_window: bool = False
    sliding_window: Annotated[int, Meta(ge=0, le=MAX_POSITIONS)] | None = 4096  # transformers 5 writes 0 for none
    max_window_layers: Annotated[int, Meta(ge=0, le=MAX_LAYERS)] = 28
    layer_types: list[LayerType] | None = None

    def windows(self) -> Sequence[int]:
        return self.sliding_windows(self.sliding_window, self._types())

    def _types(self) -> list[LayerType]:
        """Types by `layer_types`; without it the layers from `max_window_layers` on slide."""
        if self.layer_types is not None:
            if "sliding_attention" in self.layer_types and not self.use_sliding_window:
                raise refuse("use_sliding_window", False, "layer_types names sliding_attention")
            return self.layer_types
        slides = self.use_sliding_window and self.sliding_window is not None
        first = self.max_window_layers if slides else self.num_hidden_layers
        return ["sliding_attention" if i >= first else "full_attention" for i in range(self.num_hidden_layers)]


class Qwen2Config(QwenConfig, kw_only=True):
    """Qwen 2 and 2.5: q, k and v always have a bias; attention_bias is not read."""

    lacks_o_bias = True

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), has_qkv_bias=True)


class Qwen3Config(QwenConfig, kw_only=True):
    """Qwen 3: query and key heads are normed."""

    qk_norm = "head"


class QwenMoeConfig(QwenConfig, kw_only=True):
    """Keys of both generations with experts."""

    decoder_sparse_step: Layers = 1
    mlp_only_layers: tuple[LayerIndex, ...] = ()
    num_experts: ExpertCount = 128
    num_experts_per_tok: ExpertCount = 8
    moe_intermediate_size: Width = 768
    norm_topk_prob: bool = False

    def experts(self) -> ExpertsSpec:
        return softmax_experts(self, self.network(self.moe_intermediate_size))

    def chooses(self) -> Sequence[bool]:
        return sparse_layers(self.num_hidden_layers, self.decoder_sparse_step, self.mlp_only_layers)

    def _types(self) -> list[LayerType]:
        if self.layer_types is not None or not self.use_sliding_window:
            return super()._types()
        return ["sliding_attention"] * self.num_hidden_layers


class Qwen2MoeConfig(QwenMoeConfig, kw_only=True):
    """Qwen 1.5 and 2 with experts: the sigmoid of a projection weights the network that all tokens take."""

    shared_expert_intermediate_size: Annotated[int, Meta(ge=1, le=1 << 20)] = 5632
    qkv_bias: bool = True

    lacks_o_bias = True

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), has_qkv_bias=self.qkv_bias)

    def experts(self) -> ExpertsSpec:
        shared = self.network(self.shared_expert_intermediate_size)
        return replace(super().experts(), shared=shared, has_shared_gate=True)

    def _types(self) -> list[LayerType]:
        """Every other layer slides, from the first to `max_window_layers`, where the file does not say."""
        if self.layer_types is not None or not self.use_sliding_window:
            return super()._types()
        layers, last = range(self.num_hidden_layers), self.max_window_layers
        return ["full_attention" if i % 2 or i >= last else "sliding_attention" for i in layers]


class Qwen3MoeConfig(QwenMoeConfig, kw_only=True):
    """Qwen 3 with experts: query and key heads are normed."""

    num_local_experts: ExpertCount | None = None  # another name of num_experts

    qk_norm = "head"

    def __post_init__(self) -> None:
        if self.num_local_experts is not None:
            self.num_experts = self.num_local_experts
