"""Apertus: networks without a gate whose activation, xIELU, has learned numbers, and normed heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ..layer import AttentionSpec, NetworkSpec, RopeSpec
from ..names import Names
from .decoder import DecoderConfig


class ApertusConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of ApertusConfig."""

    hidden_act: Literal["xielu"] = "xielu"  # type: ignore[assignment]

    own_names = Names.of(
        {"input_layernorm": "attention_layernorm", "post_attention_layernorm": "feedforward_layernorm"}, "model."
    )

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), qk_norm="head")

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, "xielu", is_gated=False)
