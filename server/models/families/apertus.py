"""Apertus: networks without a gate whose activation, xIELU, has learned numbers, and normed heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ..config_values import Values
from ..layer import AttentionSpec, NetworkSpec, RopeSpec
from ..names import Names
from ..rope import read_rope, rope_object
from .decoder import DecoderConfig

THETA = 12_000_000.0
ROPE = {  # of files that leave it out: ApertusConfig
    "rope_type": "llama3",
    "rope_theta": THETA,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


class ApertusConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of ApertusConfig."""

    hidden_act: Literal["xielu"] = "xielu"  # type: ignore[assignment]

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), qk_norm="head")

    def ropes(self, values: Values) -> Sequence[RopeSpec]:
        values = values if rope_object(values)[1] else {**values, "rope_parameters": ROPE}
        return self.on_all(read_rope(values, self.max_position_embeddings, THETA))

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, "xielu", is_gated=False)

    def names(self) -> Names:
        words = {"input_layernorm": "attention_layernorm", "post_attention_layernorm": "feedforward_layernorm"}
        return Names.of(words, "model.")
