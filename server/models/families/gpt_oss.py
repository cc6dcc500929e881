"""GPT-OSS: experts with biases and a clamped gate, attention sinks, windows on every other layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..config_values import Positions, refuse
from ..layer import AttentionSpec, ExpertsSpec, NetworkSpec, RopeSpec
from ..names import Names
from .decoder import DecoderConfig
from .experts import ExpertCount
from .family import LayerType

NAMES = replace(Names.of({"mlp.gate": "mlp.router"}, "model."), fused="inputs, in turns")
SWIGLU = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}  # the kernel computes these


class GptOssConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of GptOssConfig."""

    sliding_window: Positions | None = 128
    layer_types: list[LayerType] | None = None
    num_local_experts: ExpertCount = 128
    num_experts_per_tok: ExpertCount = 4
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0

    own_names = NAMES

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), has_sinks=True)

    def network(self, size: int) -> NetworkSpec:
        for key, computed in SWIGLU.items():
            if getattr(self, key) != computed:
                raise refuse(key, getattr(self, key), f"only {computed} is computed")
        return NetworkSpec(size, "swiglu_clamped", has_bias=True)

    def experts(self) -> ExpertsSpec:
        return ExpertsSpec(self.num_local_experts, self.num_experts_per_tok, self.dense(), has_router_bias=True)

    def windows(self) -> Sequence[int]:
        types = self.types_by_period(2) if self.layer_types is None else self.layer_types
        return self.sliding_windows(self.sliding_window, types)
