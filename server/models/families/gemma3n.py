"""Gemma 3n (text): inputs of layers by token, several streams, sparse gates, and keys and values of earlier layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta

from ..config_values import Values, Vocab, Width, refuse
from ..layer import AttentionSpec, FeedForward, LayerInputSpec, LayerSpec, NetworkSpec, RopeSpec, StreamsSpec
from .gemma import Gemma3Config
from .gemma4 import SharedLayers, sharing

Sparsity = Annotated[float, Meta(ge=0.0, lt=1.0)]
SPARSE_LAYERS, SPARSITY = 10, 0.95  # where the file does not say: Gemma3nTextConfig


class Gemma3nConfig(Gemma3Config, kw_only=True):
    """Keys and defaults of Gemma3nTextConfig."""

    intermediate_size: Width | list[Width] = 16_384  # type: ignore[assignment]
    vocab_size_per_layer_input: Vocab = 262_144
    hidden_size_per_layer_input: Annotated[int, Meta(ge=16, le=1 << 16, multiple_of=16)] = 256
    altup_active_idx: Literal[0] = 0
    altup_correct_scale: bool = True
    altup_num_inputs: Annotated[int, Meta(ge=2, le=8)] = 4
    num_kv_shared_layers: SharedLayers = 15
    laurel_rank: Width = 64
    activation_sparsity_pattern: Sparsity | list[Sparsity] | None = None

    norm_offset = 0.0

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), scale=1.0, has_value_norm=True)

    def layers(self, values: Values) -> tuple[LayerSpec, ...]:
        layers, narrow = super().layers(values), NetworkSpec(self.hidden_size_per_layer_input, "gelu_tanh", False)
        mixers = sharing([layer.attention for layer in layers], self.types(), self.num_kv_shared_layers)
        given = LayerInputSpec(narrow, self.vocab_size_per_layer_input)
        laurel = NetworkSpec(self.laurel_rank, "none", is_gated=False)
        streams = StreamsSpec(self.altup_num_inputs, laurel, self.altup_correct_scale)
        each = zip(layers, mixers, strict=True)
        return tuple(replace(layer, mixer=mixer, input=given, streams=streams) for layer, mixer in each)

    def feed_forwards(self) -> Sequence[FeedForward]:
        layers, sizes, shares = self.num_hidden_layers, self.intermediate_size, self.activation_sparsity_pattern
        sizes = sizes if isinstance(sizes, list) else [sizes] * layers
        if shares is None:
            num_sparse = SPARSE_LAYERS if layers > SPARSE_LAYERS else 0
            shares = [SPARSITY] * num_sparse + [0.0] * (layers - num_sparse)
        shares = shares if isinstance(shares, list) else [shares] * layers
        for key, found in (("intermediate_size", sizes), ("activation_sparsity_pattern", shares)):
            if len(found) != layers:
                raise refuse(key, found, f"must have a number for each of the {layers} layers")
        each = zip(sizes, shares, strict=True)
        return [replace(self.network(size), sparsity=share) for size, share in each]
