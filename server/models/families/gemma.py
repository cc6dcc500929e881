"""Gemma, Gemma 2, VaultGemma and Gemma 3 (text).

Gemma: norms of (1 + w), GeGLU, scaled embeddings. Gemma 2: norms before and after, caps on scores and logits, local
and global layers in turn. Gemma 3: norms of heads instead of the cap on scores; local layers have a rotary base of
their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from ..config_values import Layers, Positions, Values, refuse
from ..layer import AttentionSpec, NetworkSpec, NormPlacement, RopeSpec
from ..names import Names
from ..rope import Theta, ropes_by_type
from ..spec import EmbeddingSpec, HeadSpec, ModelSpec
from .decoder import DecoderConfig
from .family import LayerType

Scalar = Annotated[float, Meta(gt=0.0, le=1e6)]
Cap = Annotated[float, Meta(gt=0.0, le=1e6)]
GEMMA3_THETA = 1_000_000.0  # of global layers


class GemmaConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of GemmaConfig. Old files say gelu for its tanh form."""

    hidden_act: Literal["gelu", "gelu_pytorch_tanh"] = "gelu_pytorch_tanh"  # type: ignore[assignment]
    use_bidirectional_attention: bool | Literal["vision"] | None = False  # vision: the tokens of a picture alone

    may_see_both_sides: ClassVar[bool] = False
    norm_offset = 1.0

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        if self.use_bidirectional_attention is True and not self.may_see_both_sides:
            raise refuse("use_bidirectional_attention", True, "not supported")
        return super().attention(rope, window)

    def network(self, size: int) -> NetworkSpec:
        return replace(super().network(size), activation="gelu_tanh")

    def embedding(self) -> EmbeddingSpec:
        return EmbeddingSpec(self.vocab_size, self.hidden_size, scale=self.hidden_size**0.5)


class Gemma2Config(GemmaConfig, kw_only=True):
    """Keys and defaults of Gemma2Config; null caps nothing."""

    hidden_activation: Literal["gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    query_pre_attn_scalar: Scalar = 256.0
    sliding_window: Positions | None = 4096
    layer_types: list[LayerType] | None = None
    attn_logit_softcapping: Cap | None = 50.0
    final_logit_softcapping: Cap | None = 30.0

    norm_placement: ClassVar[NormPlacement] = "before_and_after"

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        scale, cap = self.query_pre_attn_scalar**-0.5, self.attn_logit_softcapping or 0.0
        return replace(super().attention(rope, window), scale=scale, score_cap=cap)

    def windows(self) -> Sequence[int]:
        return self.sliding_windows(self.sliding_window, self.types())

    def types(self) -> list[LayerType]:
        """Return the type of each layer: local and global in turn, where the file does not say."""
        return self.types_by_period(2) if self.layer_types is None else self.layer_types

    def head(self) -> HeadSpec:
        return HeadSpec(self.tie_word_embeddings, cap=self.final_logit_softcapping or 0.0)


class VaultGemmaConfig(Gemma2Config, kw_only=True):
    """Keys and defaults of VaultGemmaConfig: norms before branches alone."""

    norm_placement = "before"
    own_names = Names.of({"post_attention_layernorm": "pre_feedforward_layernorm"}, "model.")


class Gemma3Config(Gemma2Config, kw_only=True):
    """Keys and defaults of Gemma3TextConfig."""

    sliding_window_pattern: Layers = 6  # period of global layers, where there is no layer_types
    rope_local_base_freq: Theta = 10_000.0

    qk_norm = "head"

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        # The family's code does not read attn_logit_softcapping: scores are not capped.
        return replace(super().attention(rope, window), score_cap=0.0)

    def types(self) -> list[LayerType]:
        return self.types_by_period(self.sliding_window_pattern) if self.layer_types is None else self.layer_types

    def ropes(self, values: Values) -> Sequence[RopeSpec]:
        local, whole = ropes_by_type(values, self.max_position_embeddings, self.rope_local_base_freq, GEMMA3_THETA)
        return [local if name == "sliding_attention" else whole for name in self.types()]


class Gemma3TextConfig(Gemma3Config, kw_only=True):
    """The model without its output layer (EmbeddingGemma), whose tokens may attend to both sides."""

    may_see_both_sides = True

    def spec(self, architecture: str, values: Values) -> ModelSpec:
        model = super().spec(architecture, values)
        if self.use_bidirectional_attention is not True:
            return model
        return replace(model, stacks=(replace(model.stack, kind="encoder"),))
