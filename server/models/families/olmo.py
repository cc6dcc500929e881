"""OLMo 2, OLMo 3 and OLMoE: norms of queries and keys over all heads together."""

from __future__ import annotations

from collections.abc import Sequence

from ..config_values import Positions, Values, refuse
from ..layer import AttentionSpec, ExpertsSpec, RopeSpec
from ..rope import ropes_by_type
from .decoder import DecoderConfig
from .experts import ExpertCount, softmax_experts
from .family import LayerType

OLMO3_THETA = 500_000.0


class Olmo2Config(DecoderConfig, kw_only=True):
    """Keys and defaults of Olmo2Config: norms behind attention and feed-forward alone."""

    norm_placement = "after"
    qk_norm = "all_heads"


class Olmo3Config(Olmo2Config, kw_only=True):
    """Keys and defaults of Olmo3Config: three of four layers slide, and are rotated without the file's scaling."""

    sliding_window: Positions | None = 4096
    layer_types: list[LayerType] | None = None

    def windows(self) -> Sequence[int]:
        return self.sliding_windows(self.sliding_window, self._types())

    def ropes(self, values: Values) -> Sequence[RopeSpec]:
        local, whole = ropes_by_type(values, self.max_position_embeddings, OLMO3_THETA, OLMO3_THETA)
        return [local if name == "sliding_attention" else whole for name in self._types()]

    def _types(self) -> list[LayerType]:
        """Every fourth layer attends to everything, where the file does not say."""
        return self.types_by_period(4) if self.layer_types is None else self.layer_types


class FlexOlmoConfig(Olmo2Config, kw_only=True):
    """Keys and defaults of FlexOlmoConfig: OLMo 2 with experts on every layer."""

    num_experts: ExpertCount = 7
    num_experts_per_tok: ExpertCount = 5
    norm_topk_prob: bool = False

    def experts(self) -> ExpertsSpec:
        return softmax_experts(self, self.dense())


class OlmoeConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of OlmoeConfig: experts on every layer."""

    clip_qkv: float | None = None
    num_experts: ExpertCount = 64
    num_experts_per_tok: ExpertCount = 8
    norm_topk_prob: bool = False

    qk_norm = "all_heads"

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        if self.clip_qkv is not None:
            raise refuse("clip_qkv", self.clip_qkv, "not supported")
        return super().attention(rope, window)

    def experts(self) -> ExpertsSpec:
        return softmax_experts(self, self.dense())
