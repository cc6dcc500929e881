"""Llama. Most decoders have its keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from ..config_values import HeadDim, Heads, Values, Width, refuse
from ..layer import AttentionSpec, NetworkSpec, RopeSpec
from ..rope import DEFAULT_THETA, read_rope, rope_object, rope_of
from ..spec import HeadSpec
from .family import FamilyConfig, LayerType


class DecoderConfig(FamilyConfig, kw_only=True):
    """Llama's keys and defaults."""

    intermediate_size: Width = 11_008
    num_key_value_heads: Heads | None = None  # null: as many as query heads
    head_dim: HeadDim | None = None  # None: hidden_size / num_attention_heads
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: Literal["silu"] = "silu"

    head_has_bias: ClassVar[bool] = False
    refused_biases: ClassVar[tuple[str, ...]] = ()  # keys of biases that the family's code does not have
    lacks_o_bias: ClassVar[bool] = False  # attention_bias is about q, k and v alone
    rotated_share: ClassVar[float | None] = None  # of each head, where the file does not say; None: all of it, always
    is_interleaved: ClassVar[bool] = False  # neighbours are rotated as a pair

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        self.require_no_bias(*self.refused_biases)
        attention, has_bias = super().attention(rope, window), self.attention_bias
        return replace(attention, has_qkv_bias=has_bias, has_o_bias=has_bias and not self.lacks_o_bias)

    def ropes(self, values: Values) -> Sequence[RopeSpec | None]:
        if self.rotated_share is None:
            rope = read_rope(values, self.max_position_embeddings)
        else:
            rope = self.partial_rope(values, self.rotated_share)
        return self.on_all(replace(rope, is_interleaved=self.is_interleaved))

    def partial_rope(self, values: Values, share: float) -> RopeSpec:
        """Return the rotation of a part of each head: `share` of it, where the file does not say."""
        path, rope = rope_object(values)
        outer = {"partial_rotary_factor": share, **values}
        return rope_of(outer, rope, path, self.max_position_embeddings, DEFAULT_THETA, may_be_partial=True)

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, has_bias=self.mlp_bias)

    def head(self) -> HeadSpec | None:
        return HeadSpec(self.tie_word_embeddings, self.head_has_bias)

    def kv_heads(self) -> int:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads
        if heads % kv_heads:
            raise refuse("num_attention_heads", heads, f"not a multiple of num_key_value_heads, which is {kv_heads}")
        return kv_heads

    def head_size(self) -> int:
        return super().head_size() if self.head_dim is None else self.head_dim

    def require_no_bias(self, *keys: str) -> None:
        """Raise ConfigError when a key asks for a bias that the family's code does not have."""
        for key in keys:
            if getattr(self, key):
                raise refuse(key, True, "not supported for this architecture")

    def types_by_period(self, every: int) -> list[LayerType]:
        """Return types where each `every`th layer attends to everything and the others slide."""
        layers = range(1, self.num_hidden_layers + 1)
        return ["sliding_attention" if layer % every else "full_attention" for layer in layers]

    def rotated_layers(self, flags: Sequence[int] | None, every: int) -> Sequence[int]:
        """Return whether each layer is rotated: by `no_rope_layers`, where 1 is yes, or all but each `every`th."""
        layers = self.num_hidden_layers
        if flags is None:
            return [int((i + 1) % every != 0) for i in range(layers)]
        if len(flags) < layers:
            raise refuse("no_rope_layers", flags, f"must have a number for each of the {layers} layers")
        return flags[:layers]
