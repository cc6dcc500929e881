"""Mistral: a sliding window on all layers, or none. Ministral: windows by layer; Ministral 3: YaRN and temperatures.

Mixtral: Mistral with experts in place of each feed-forward network, under names of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta

from ..config_values import Positions, Values, read_record
from ..layer import ExpertsSpec, LayerSpec, TemperatureSpec
from ..names import Names
from ..rope import rope_object
from .decoder import DecoderConfig
from .experts import ExpertCount
from .family import LayerType

MIXTRAL_WORDS = {"mlp": "block_sparse_moe", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


class MistralConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of MistralConfig; there are no biases."""

    sliding_window: Positions | None = 4096

    refused_biases = ("attention_bias", "mlp_bias")

    def windows(self) -> Sequence[int]:
        window = self.sliding_window
        return self.on_all(0) if window is None else self.sliding_windows(window, self.types())

    def types(self) -> list[LayerType]:
        """Return the type of each layer: all slide."""
        return ["sliding_attention"] * self.num_hidden_layers


class MinistralConfig(MistralConfig, kw_only=True):
    """Keys and defaults of MinistralConfig."""

    layer_types: list[LayerType] | None = None

    def types(self) -> list[LayerType]:
        """Return the type of each layer: all slide, where the file does not say."""
        return super().types() if self.layer_types is None else self.layer_types


class _Scaling(msgspec.Struct):
    llama_4_scaling_beta: Annotated[float, Meta(ge=0.0, le=1e3)]


class Ministral3Config(MistralConfig, kw_only=True):
    """Keys and defaults of Ministral3Config. Queries grow with the position beyond the trained context."""

    def layers(self, values: Values) -> tuple[LayerSpec, ...]:
        path, rope = rope_object(values)
        beta = read_record(rope, _Scaling, path).llama_4_scaling_beta
        layers = super().layers(values)
        rotation = layers[0].attention.rope
        floor = (rotation.original_max_position if rotation is not None else 0) or self.max_position_embeddings
        temperature = TemperatureSpec(beta, floor, shift=0)
        return tuple(replace(layer, mixer=replace(layer.attention, temperature=temperature)) for layer in layers)


class MixtralConfig(MistralConfig, kw_only=True):
    """Keys and defaults of MixtralConfig."""

    num_local_experts: ExpertCount = 8
    num_experts_per_tok: ExpertCount = 2

    own_names = Names.of(MIXTRAL_WORDS, "model.")

    def experts(self) -> ExpertsSpec:
        return ExpertsSpec(self.num_local_experts, self.num_experts_per_tok, self.dense())
