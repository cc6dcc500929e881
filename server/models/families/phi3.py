"""Phi 3 to 4-mini and 3.5-MoE: fused projections, LongRoPE, rotation of a part of each head, a sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from ..config_values import Positions, Values, refuse
from ..layer import ExpertsSpec, RopeSpec
from ..names import Names
from ..rope import DEFAULT_THETA, rope_object, rope_of
from ..spec import HeadSpec
from .decoder import DecoderConfig
from .experts import ExpertCount
from .mistral import MIXTRAL_WORDS

PHI3 = Names.of(
    {
        **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
        **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
    },
    prefix="model.",
)
LONGROPE = ("su", "yarn", "longrope")  # the names that files of this family have given it


class Phi3Config(DecoderConfig, kw_only=True):
    """Keys and defaults of Phi3Config; there are no biases."""

    original_max_position_embeddings: Positions = 4096
    sliding_window: Positions | None = None

    own_names = PHI3
    refused_biases: ClassVar[tuple[str, ...]] = ("attention_bias", "mlp_bias")

    def windows(self) -> Sequence[int]:
        return self.on_all(self.sliding_window or 0)

    def ropes(self, values: Values) -> Sequence[RopeSpec]:
        path, rope = rope_object(values)
        if rope.get("rope_type", rope.get("type")) in LONGROPE:
            rope = {**rope, "rope_type": "longrope"}
        values = {**values, "original_max_position_embeddings": self.original_max_position_embeddings}
        length = self.max_position_embeddings
        return self.on_all(rope_of(values, rope, path, length, DEFAULT_THETA, may_be_partial=True))


class PhimoeConfig(Phi3Config, kw_only=True):
    """Keys and defaults of PhimoeConfig: layer norms, and experts weighted by the softmax among near ones."""

    num_local_experts: ExpertCount = 16
    num_experts_per_tok: ExpertCount = 2
    router_jitter_noise: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.01
    lm_head_bias: bool = False

    norm_kind = "layer"
    own_names = Names.of(MIXTRAL_WORDS, "model.")
    refused_biases = ()

    def ropes(self, values: Values) -> Sequence[RopeSpec]:
        path, rope = rope_object(values)
        short, long = (rope.get(f"{name}_mscale") for name in ("short", "long"))
        if short != long:
            raise refuse(f"{path}long_mscale", long, f"must be short_mscale, which is {short}")
        stated = rope if short is None else {**rope, "attention_factor": short}
        return super().ropes({**values, **({path[:-1]: stated} if path else {})})

    def experts(self) -> ExpertsSpec:
        margin, counts = 2 * self.router_jitter_noise, (self.num_local_experts, self.num_experts_per_tok)
        return ExpertsSpec(*counts, self.dense(), routing="softmax_of_near", margin=margin)

    def head(self) -> HeadSpec:
        return HeadSpec(self.tie_word_embeddings, self.lm_head_bias)
