"""Llama 4 (text): rotated layers attend to their own chunk; others have no rotation, attend to everything, and scale
their queries by position. Some layers or all have experts, whose weight multiplies their input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta

from ..config_values import MAX_LAYERS, Layers, Positions, Values, Width, refuse
from ..layer import AttentionSpec, ExpertsSpec, NetworkSpec, RopeSpec, TemperatureSpec
from ..names import Names
from ..rope import read_rope
from .decoder import DecoderConfig
from .experts import ExpertCount, LayerIndex, sparse_layers

NAMES = replace(Names.of({"mlp": "feed_forward", "mlp.gate": "feed_forward.router"}, "model."), fused="inputs")
AttentionKind = Literal["full_attention", "chunked_attention"]


class Llama4TextConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of Llama4TextConfig."""

    intermediate_size: Width = 8192  # of an expert, and of the shared network
    intermediate_size_mlp: Width = 16_384  # of layers without experts
    num_local_experts: ExpertCount = 16
    num_experts_per_tok: ExpertCount = 1
    moe_layers: list[LayerIndex] | None = None
    interleave_moe_layer_step: Layers = 1
    use_qk_norm: bool = True
    no_rope_layers: list[Annotated[int, Meta(ge=0, le=1)]] | None = None  # 1: the layer is rotated
    no_rope_layer_interval: Annotated[int, Meta(ge=1, le=MAX_LAYERS)] = 4
    attention_chunk_size: Positions | None = 8192
    layer_types: list[AttentionKind] | None = None
    attn_temperature_tuning: bool = True
    floor_scale: Positions = 8192
    attn_scale: Annotated[float, Meta(ge=0.0, le=1e3)] = 0.1

    own_names = NAMES

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        sharpens = self.attn_temperature_tuning and rope is None
        return replace(
            super().attention(rope, window),
            is_chunked=True,
            # The graph has the norm before the rotation, which changes no head's length.
            qk_norm="unweighted" if self.use_qk_norm and rope is not None else "none",
            temperature=TemperatureSpec(self.attn_scale, self.floor_scale, shift=1) if sharpens else None,
        )

    def ropes(self, values: Values) -> Sequence[RopeSpec | None]:
        rope = replace(read_rope(values, self.max_position_embeddings), is_interleaved=True)
        if self.use_qk_norm:  # the norm follows the rotation in the family's code, and cancels this factor
            rope = replace(rope, attention_factor=1.0)
        return [rope if turns else None for turns in self._rotated()]

    def experts(self) -> ExpertsSpec | None:
        network, counts = self.network(self.intermediate_size), (self.num_local_experts, self.num_experts_per_tok)
        found = ExpertsSpec(*counts, network, shared=network, routing="sigmoid", weighs_inputs=True)
        return found if any(self.chooses()) else None

    def chooses(self) -> Sequence[bool]:
        if self.moe_layers is not None:
            return [i in self.moe_layers for i in range(self.num_hidden_layers)]
        return sparse_layers(self.num_hidden_layers, self.interleave_moe_layer_step, ())

    def dense(self) -> NetworkSpec:
        return self.network(self.intermediate_size_mlp)

    def windows(self) -> Sequence[int]:
        """Chunk of each layer, 0 where it attends to everything: by the file, or chunks where it is rotated."""
        types = self.layer_types or [self._kind(bool(turns)) for turns in self._rotated()]
        self.require_length(types)
        size = self.attention_chunk_size
        if "chunked_attention" in types and size is None:
            raise refuse("attention_chunk_size", size, "layer_types names chunked_attention")
        return [(size or 0) * (name == "chunked_attention") for name in types]

    def _rotated(self) -> Sequence[int]:
        """Return whether each layer is rotated; an empty list counts as none."""
        return self.rotated_layers(self.no_rope_layers or None, self.no_rope_layer_interval)

    def _kind(self, is_rotated: bool) -> AttentionKind:
        return "chunked_attention" if is_rotated else "full_attention"
