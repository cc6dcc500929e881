"""Qwen 2, 2.5 and 3: biases on q, k and v, or norms of heads; sliding windows on some layers if the file has them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from neuronserve.server.models.config_values import (
    MAX_LAYERS,
    MAX_POSITIONS,
    HeadDim,
    Heads,
    Positions,
    Values,
    Vocab,
    Width,
    refuse,
)
from neuronserve.server.models.families.decoder import DecoderConfig, LayerType


class QwenConfig(DecoderConfig, kw_only=True):
    """Keys and defaults that both generations share."""

    vocab_size: Vocab = 151_936
    intermediate_size: Width = 22_016
    num_key_value_heads: Heads | None = 32
    max_position_embeddings: Positions = 32_768
    use_sliding_window: bool = False
    sliding_window: Annotated[int, Meta(ge=0, le=MAX_POSITIONS)] | None = 4096  # transformers 5 writes 0 for none
    max_window_layers: Annotated[int, Meta(ge=0, le=MAX_LAYERS)] = 28
    layer_types: list[LayerType] | None = None

    def features(self, values: Values) -> dict[str, Any]:
        return {**super().features(values), "windows": self.sliding_windows(self.sliding_window, self._types())}

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
    """Qwen 2 and 2.5: q, k and v always have a bias, whatever attention_bias is."""

    def features(self, values: Values) -> dict[str, Any]:
        return {**super().features(values), "has_qkv_bias": True, "has_o_bias": False}


class Qwen3Config(QwenConfig, kw_only=True):
    """Qwen 3: query and key heads are normed."""

    head_dim: HeadDim | None = 128

    def features(self, values: Values) -> dict[str, Any]:
        return {**super().features(values), "has_qk_norm": True}
