"""Command-R, Command-R+ and Command-R7B (Cohere 2): one layer norm before both branches, which are side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from msgspec import Meta, field

from ..config_values import Epsilon, Layers, Positions, Values
from ..layer import AttentionSpec, RopeSpec
from ..spec import HeadSpec
from .decoder import DecoderConfig
from .family import LayerType


class CohereConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of CohereConfig."""

    rms_norm_eps: Epsilon = field(default=1e-5, name="layer_norm_eps")
    logit_scale: Annotated[float, Meta(gt=0.0, le=1e3)] = 0.0625
    use_qk_norm: bool = False

    norm_placement = "parallel"
    norm_kind = "layer_no_bias"
    refused_biases = ("mlp_bias",)
    is_interleaved = True

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), qk_norm="each_head" if self.use_qk_norm else "none")

    def head(self) -> HeadSpec:
        return HeadSpec(self.tie_word_embeddings, scale=self.logit_scale)


class Cohere2Config(CohereConfig, kw_only=True):
    """Keys and defaults of Cohere2Config: layers that slide are rotated, the others have no positions."""

    sliding_window: Positions | None = 4096
    sliding_window_pattern: Layers = 4
    layer_types: list[LayerType] | None = None

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), qk_norm="none")

    def windows(self) -> Sequence[int]:
        return self.sliding_windows(self.sliding_window, self._types())

    def ropes(self, values: Values) -> Sequence[RopeSpec | None]:
        layers = zip(super().ropes(values), self._types(), strict=True)
        return [rope if name == "sliding_attention" else None for rope, name in layers]

    def _types(self) -> list[LayerType]:
        return self.layer_types or self.types_by_period(self.sliding_window_pattern)
