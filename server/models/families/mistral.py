"""Mistral: a sliding window on all layers, or none. Ministral: windows by layer; Ministral 3: YaRN and temperatures."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from neuronserve.server.models.config_values import (
    Epsilon,
    HeadDim,
    Heads,
    Layers,
    Positions,
    Values,
    Vocab,
    Width,
    read_record,
)
from neuronserve.server.models.families.decoder import DecoderConfig, LayerType
from neuronserve.server.models.rope import rope_object, rope_of
from neuronserve.server.models.spec import TemperatureSpec

# Of configurations that leave rope_parameters out: Ministral3Config.__post_init__.
MINISTRAL3_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16_384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
MINISTRAL3_THETA = 10_000.0


class MistralConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of MistralConfig; there are no biases."""

    intermediate_size: Width = 14_336
    num_key_value_heads: Heads | None = 8
    max_position_embeddings: Positions = 131_072
    sliding_window: Positions | None = 4096

    def features(self, values: Values) -> dict[str, Any]:
        self.require_no_bias("attention_bias", "mlp_bias")
        window = self.sliding_window
        windows = () if window is None else self.sliding_windows(window, self.types())
        return {**super().features(values), "windows": windows}

    def types(self) -> list[LayerType]:
        """The type of each layer: all slide."""
        return ["sliding_attention"] * self.num_hidden_layers


class MinistralConfig(MistralConfig, kw_only=True):
    """Keys and defaults of MinistralConfig."""

    layer_types: list[LayerType] | None = None

    def types(self) -> list[LayerType]:
        """The type of each layer: all slide, where the file does not say."""
        return super().types() if self.layer_types is None else self.layer_types


class _Scaling(msgspec.Struct):
    llama_4_scaling_beta: Annotated[float, Meta(ge=0.0, le=1e3)]


class Ministral3Config(MistralConfig, kw_only=True):
    """Keys and defaults of Ministral3Config. Queries are sharper, the longer the text is beyond the trained context."""

    vocab_size: Vocab = 131_072
    num_hidden_layers: Layers = 34
    head_dim: HeadDim | None = 128
    max_position_embeddings: Positions = 262_144
    rms_norm_eps: Epsilon = 1e-5
    sliding_window: Positions | None = None

    def ropes(self, values: Values) -> dict[str, Any]:
        path, rope = rope_object(values)
        if not rope:
            path, rope = "rope_parameters.", MINISTRAL3_ROPE
        spec = rope_of(values, rope, path, self.max_position_embeddings, MINISTRAL3_THETA)
        beta = read_record(rope, _Scaling, path).llama_4_scaling_beta
        floor = spec.original_max_position or self.max_position_embeddings
        return {"rope": spec, "temperature": TemperatureSpec(beta, floor, shift=0, is_of_rotated=True)}
