"""Command-R, Command-R+ and Command-R7B (Cohere 2): one layer norm before both branches, which are side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta, field

from neuronserve.server.models.config_values import Epsilon, Heads, Layers, Positions, Values, Vocab, Width
from neuronserve.server.models.families.decoder import DecoderConfig, LayerType
from neuronserve.server.models.rope import DEFAULT_THETA, read_rope


class CohereConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of CohereConfig."""

    vocab_size: Vocab = 256_000
    hidden_size: Width = 8192
    intermediate_size: Width = 22_528
    num_hidden_layers: Layers = 40
    num_attention_heads: Heads = 64
    max_position_embeddings: Positions = 8192
    rms_norm_eps: Epsilon = field(default=1e-5, name="layer_norm_eps")
    tie_word_embeddings: bool = True
    logit_scale: Annotated[float, Meta(gt=0.0, le=1e3)] = 0.0625
    use_qk_norm: bool = False

    def features(self, values: Values) -> dict[str, Any]:
        self.require_no_bias("mlp_bias")
        return {
            **super().features(values),
            "norm": "layer_no_bias",
            "parallel_norms": 1,
            "logit_scale": self.logit_scale,
            "has_qk_norm": self.use_qk_norm,
            "has_layer_qk_norm": self.use_qk_norm,
        }

    def ropes(self, values: Values) -> dict[str, Any]:
        rope = read_rope(values, self.max_position_embeddings, theta=500_000.0)
        return {"rope": replace(rope, is_interleaved=True)}


class Cohere2Config(CohereConfig, kw_only=True):
    """Keys and defaults of Cohere2Config: layers that slide are rotated, the others know no positions."""

    sliding_window: Positions | None = 4096
    sliding_window_pattern: Layers = 4
    layer_types: list[LayerType] | None = None

    def features(self, values: Values) -> dict[str, Any]:
        windows = self.sliding_windows(self.sliding_window, self._types())
        return {**super().features(values), "windows": windows, "has_qk_norm": False, "has_layer_qk_norm": False}

    def ropes(self, values: Values) -> dict[str, Any]:
        rope = replace(read_rope(values, self.max_position_embeddings, DEFAULT_THETA), is_interleaved=True)
        return {"rope": rope, "ropes": tuple(rope if name == "sliding_attention" else None for name in self._types())}

    def _types(self) -> list[LayerType]:
        return self.layer_types or self.types_by_period(self.sliding_window_pattern)
