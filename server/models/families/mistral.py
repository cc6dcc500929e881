"""Mistral: one sliding window on all layers, or none."""

from __future__ import annotations

from typing import Any

from server.models.config_values import Heads, Positions, Values, Width, refuse
from server.models.families.decoder import DecoderConfig


class MistralConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of MistralConfig; there are no biases."""

    intermediate_size: Width = 14_336
    num_key_value_heads: Heads | None = 8
    max_position_embeddings: Positions = 131_072
    sliding_window: Positions | None = 4096

    def features(self, values: Values) -> dict[str, Any]:
        if self.attention_bias:
            raise refuse("attention_bias", True, "not supported for this architecture")
        window = self.sliding_window
        windows = () if window is None else (window,) * self.num_hidden_layers
        return {**super().features(values), "windows": windows}
