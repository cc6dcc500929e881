"""Hunyuan, dense and with experts: norms of heads follow the rotation, whose base may be stretched by `alpha`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..config_values import Layers, Values, Width, refuse
from ..layer import AttentionSpec, ExpertsSpec, NetworkSpec, RopeSpec
from ..names import Names
from ..rope import read_rope, rope_object
from .decoder import DecoderConfig
from .experts import ExpertCount

DENSE_NAMES = Names.of({"q_norm": "query_layernorm", "k_norm": "key_layernorm"}, "model.")
MOE_NAMES = Names.of({**dict(DENSE_NAMES.words), "mlp.gate": "mlp.gate.wg", "shared_expert": "shared_mlp"}, "model.")


class HunYuanDenseConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of HunYuanDenseV1Config."""

    own_names = DENSE_NAMES
    qk_norm = "head"
    refused_biases = ("mlp_bias",)

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), norms_rotated=True)

    def ropes(self, values: Values) -> Sequence[RopeSpec]:
        path, stated = rope_object(values)
        rope, alpha, size = read_rope(values, self.max_position_embeddings), stated.get("alpha"), self.head_size()
        if alpha and stated.get("rope_type", stated.get("type")) == "dynamic":
            if not isinstance(alpha, int | float) or not 1.0 <= alpha <= 1e6:
                raise refuse(f"{path}alpha", alpha, "must be a number from 1 to 1e6")
            rope = replace(rope, theta=rope.theta * alpha ** (size / (size - 2)))
        return self.on_all(rope)


class HunYuanMoeConfig(HunYuanDenseConfig, kw_only=True):
    """Keys and defaults of HunYuanMoEV1Config; counts are one for all layers, or a list that says the same of each."""

    num_experts: ExpertCount | list[ExpertCount] = 1
    moe_topk: ExpertCount | list[ExpertCount] = 1
    moe_intermediate_size: Width | list[Width] | None = None
    num_shared_expert: Layers | list[Layers] = 1

    own_names = MOE_NAMES

    def experts(self) -> ExpertsSpec:
        shared = self.network(self.intermediate_size * self._one("num_shared_expert"))
        return ExpertsSpec(self._one("num_experts"), self._one("moe_topk"), self.dense(), shared=shared)

    def dense(self) -> NetworkSpec:
        return self.network(self._one("moe_intermediate_size") or self.intermediate_size)

    def _one(self, key: str) -> int:
        """Return the value of all layers, 0 where there is none."""
        value = getattr(self, key)
        if isinstance(value, list) and len(set(value)) != 1:
            raise refuse(key, value, "layers of different sizes are not supported")
        return (value[0] if isinstance(value, list) else value) or 0
