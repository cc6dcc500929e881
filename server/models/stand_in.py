"""Layers that no record expresses, replaced for planning by attention of the same weights.

A stand-in has the heads of the model's other layers. Where its own projections have other weights, its feed-forward
network is wider or narrower by as many. Source of the sizes: Qwen3NextGatedDeltaNet and Gemma4TextAttention of
transformers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from .config_values import HeadDim, Heads, Layers, Values, Width, read_record, refuse
from .layer import FeedForward, LayerSpec, NetworkSpec
from .spec import ModelSpec


class DeltaNetConfig(msgspec.Struct):
    """Keys of a config.json with layers of gated DeltaNet, which keep a state of constant size for keys and values."""

    reason: ClassVar[str] = "gated DeltaNet is priced as attention of the same weights that caches one token"

    hidden_size: Width
    num_hidden_layers: Layers
    linear_num_key_heads: Heads
    linear_num_value_heads: Heads
    linear_key_head_dim: HeadDim
    linear_value_head_dim: HeadDim
    linear_conv_kernel_dim: Annotated[int, Meta(ge=1, le=64)] = 4
    full_attention_interval: Layers = 4
    layer_types: tuple[Literal["linear_attention", "full_attention"], ...] | None = None

    @property
    def num_weights(self) -> int:
        """Weights of a layer's projections of query, key, value, gate, decay and output, and of its convolution."""
        keys = 2 * self.linear_num_key_heads * self.linear_key_head_dim
        values = self.linear_num_value_heads * self.linear_value_head_dim
        per_input = keys + 2 * values + 2 * self.linear_num_value_heads
        return self.hidden_size * (per_input + values) + (keys + values) * self.linear_conv_kernel_dim

    def stands_in(self, layer: int) -> bool:
        """Return whether the layer at an index is replaced."""
        if self.layer_types is None:
            return (layer + 1) % self.full_attention_interval != 0
        return self.layer_types[layer] == "linear_attention"

    def window(self, layer: int) -> int:
        """Return the positions that the layer at an index caches; 0: all."""
        return int(self.stands_in(layer))


class GlobalHeadsConfig(msgspec.Struct):
    """Keys of a config.json whose global layers have other heads than the local ones. Values may be the keys.

    All layers cache every position, as the only published port has it (gemma-4-31b-it of jimburtoft's
    neuronx-distributed-inference at c892c9ac). Global layers are counted as caching as much as local ones.
    """

    reason: ClassVar[str] = "global layers with heads of their own are priced as local layers of the same weights"

    hidden_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Heads
    num_key_value_heads: Heads
    num_global_key_value_heads: Heads
    global_head_dim: HeadDim
    attention_k_eq_v: bool = False
    layer_types: tuple[Literal["sliding_attention", "full_attention"], ...] | None = None
    sliding_window_pattern: Layers = 6

    @property
    def num_weights(self) -> int:
        """Weights of a global layer's projections of query, key, value and output."""
        keys = self.num_global_key_value_heads * (1 if self.attention_k_eq_v else 2)
        return self.hidden_size * (2 * self.num_attention_heads + keys) * self.global_head_dim

    def stands_in(self, layer: int) -> bool:
        """Return whether the layer at an index is replaced."""
        if self.layer_types is None:
            return (layer + 1) % self.sliding_window_pattern == 0
        return self.layer_types[layer] == "full_attention"

    def window(self, _: int) -> int:
        """Return the positions that a layer caches: 0, for all."""
        return 0


StandInConfig = DeltaNetConfig | GlobalHeadsConfig
STAND_INS: dict[str, type[StandInConfig]] = {  # by `model_type`
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), DeltaNetConfig),
    "gemma4_text": GlobalHeadsConfig,
}


def with_stand_ins(spec: ModelSpec, values: Values, kind: type[StandInConfig]) -> ModelSpec:
    """Return `spec`, whose layers are alike in attention, with stand-ins in place of those that differ.

    Raises ConfigError for values that are missing, out of range or contradictory.
    """
    config: StandInConfig = read_record(values, kind)
    if config.layer_types is not None and len(config.layer_types) != spec.num_layers:
        raise refuse("layer_types", list(config.layer_types), f"must have {spec.num_layers} entries")
    layers = tuple(_layer(layer, config, i) for i, layer in enumerate(spec.layers))
    return replace(spec.with_layers(layers), stand_in=config.reason)


def _layer(layer: LayerSpec, config: StandInConfig, index: int) -> LayerSpec:
    own, mixer = layer.attention, replace(layer.attention, window=config.window(index))
    if not config.stands_in(index):
        return replace(layer, mixer=mixer)
    queries = own.num_heads * (3 if own.has_gate else 2)  # query, output, gate
    weights = config.hidden_size * (queries + 2 * own.num_kv_heads) * own.head_dim
    assert layer.feed_forward is not None
    more = round((config.num_weights - weights) / (3 * config.hidden_size))
    return replace(layer, mixer=mixer, feed_forward=_wider(layer.feed_forward, more))


def _wider(network: FeedForward, more: int) -> FeedForward:
    """Return a network that is wider by `more`, of experts the shared one, but never without any width."""
    if isinstance(network, NetworkSpec):
        return replace(network, size=max(1, network.size + more))
    shared = network.shared or replace(network.expert, size=0)
    return replace(network, shared=replace(shared, size=max(1, shared.size + more)))
