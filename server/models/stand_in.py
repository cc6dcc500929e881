"""Layers that no record expresses, replaced for planning by attention of the same weights that caches one token.

Gated DeltaNet (Qwen3-Next, Qwen 3.5) keeps a state of constant size in place of keys and values. Where its projections
have more weights than the model's attention, the feed-forward network is wider by as many. Source of the sizes:
Qwen3NextGatedDeltaNet of transformers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .config_values import HeadDim, Heads, Layers, Values, Width, read_record, refuse
from .layer import FeedForward, LayerSpec, NetworkSpec
from .spec import ModelSpec

DELTA_NET = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")  # values of model_type
REASON = "gated DeltaNet is priced as attention of the same weights that caches one token"

LayerType = Literal["linear_attention", "full_attention"]


class DeltaNetConfig(msgspec.Struct):
    """Keys of a config.json that describe layers of gated DeltaNet."""

    hidden_size: Width
    num_hidden_layers: Layers
    linear_num_key_heads: Heads
    linear_num_value_heads: Heads
    linear_key_head_dim: HeadDim
    linear_value_head_dim: HeadDim
    linear_conv_kernel_dim: Annotated[int, Meta(ge=1, le=64)] = 4
    full_attention_interval: Layers = 4
    layer_types: tuple[LayerType, ...] | None = None

    @property
    def num_weights(self) -> int:
        """Weights of a layer's projections of query, key, value, gate, decay and output, and of its convolution."""
        keys = 2 * self.linear_num_key_heads * self.linear_key_head_dim
        values = self.linear_num_value_heads * self.linear_value_head_dim
        per_input = keys + 2 * values + 2 * self.linear_num_value_heads
        return self.hidden_size * (per_input + values) + (keys + values) * self.linear_conv_kernel_dim

    def is_linear(self, layer: int) -> bool:
        """Return whether the layer at an index has a state."""
        if self.layer_types is None:
            return (layer + 1) % self.full_attention_interval != 0
        return self.layer_types[layer] == "linear_attention"


def with_delta_net(spec: ModelSpec, values: Values) -> ModelSpec:
    """Return `spec`, whose layers all attend, with stand-ins in place of the layers of gated DeltaNet.

    Raises ConfigError for values that are missing, out of range or contradictory.
    """
    config = read_record(values, DeltaNetConfig)
    if config.layer_types is not None and len(config.layer_types) != spec.num_layers:
        raise refuse("layer_types", list(config.layer_types), f"must have {spec.num_layers} entries")
    layers = tuple(
        _stand_in(layer, spec.hidden_size, config.num_weights) if config.is_linear(i) else layer
        for i, layer in enumerate(spec.layers)
    )
    return replace(spec.with_layers(layers), stand_in=REASON)


def _stand_in(layer: LayerSpec, hidden: int, num_weights: int) -> LayerSpec:
    mixer = layer.mixer
    queries = mixer.num_heads * mixer.head_dim * (3 if mixer.has_gate else 2)  # query, output, gate
    own = hidden * (queries + 2 * mixer.num_kv_heads * mixer.head_dim)
    more = round((num_weights - own) / (3 * hidden))
    return replace(layer, mixer=replace(mixer, window=1), feed_forward=_wider(layer.feed_forward, more))


def _wider(network: FeedForward, more: int) -> FeedForward:
    """Return a network that is wider by `more`, of experts the shared one, but never without any width."""
    if isinstance(network, NetworkSpec):
        return replace(network, size=max(1, network.size + more))
    shared = network.shared or replace(network.expert, size=0)
    return replace(network, shared=replace(shared, size=max(1, shared.size + more)))
