"""Layers that no family reads, replaced for planning by attention of the same weights.

A stand-in has the heads of the model's other layers. Where its own projections have other weights, its feed-forward
network is wider or narrower by as many. Source of the sizes: Gemma4TextAttention of transformers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import msgspec

from .config_values import HeadDim, Heads, Layers, Values, Width, read_record, refuse
from .layer import LayerSpec, NetworkSpec
from .spec import ModelSpec


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


STAND_INS = {"gemma4_text": GlobalHeadsConfig}  # by `model_type`


def with_stand_ins(spec: ModelSpec, values: Values, kind: type[GlobalHeadsConfig]) -> ModelSpec:
    """Return `spec`, whose layers are alike in attention, with stand-ins in place of those that differ.

    Raises ConfigError for values that are missing, out of range or contradictory.
    """
    config = read_record(values, kind)
    if config.layer_types is not None and len(config.layer_types) != spec.num_layers:
        raise refuse("layer_types", list(config.layer_types), f"must have {spec.num_layers} entries")
    layers = tuple(_layer(layer, config, i) for i, layer in enumerate(spec.layers))
    return replace(spec.with_layers(layers), stand_in=config.reason)


def _layer(layer: LayerSpec, config: GlobalHeadsConfig, index: int) -> LayerSpec:
    own, network = layer.attention, layer.feed_forward
    assert isinstance(network, NetworkSpec)
    if config.stands_in(index):
        weights = config.hidden_size * (2 * own.num_heads + 2 * own.num_kv_heads) * own.head_dim
        more = round((config.num_weights - weights) / (3 * config.hidden_size))
        network = replace(network, size=max(1, network.size + more))
    return replace(layer, mixer=replace(own, window=0), feed_forward=network)
