"""Gemma: norms of (1 + w), GeGLU, scaled embeddings. Gemma 2: norms before and after, caps on scores and logits, local
layers in turn with global ones.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from neuronserve.server.models.config_values import HeadDim, Heads, Layers, Positions, Values, Vocab, Width, refuse
from neuronserve.server.models.families.decoder import DecoderConfig, LayerType

Scalar = Annotated[float, Meta(gt=0.0, le=1e6)]
Cap = Annotated[float, Meta(gt=0.0, le=1e6)]


class GemmaConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of GemmaConfig, and what later generations have kept. Old files say gelu for its tanh form."""

    vocab_size: Vocab = 256_000
    hidden_size: Width = 3072
    intermediate_size: Width = 24_576
    num_hidden_layers: Layers = 28
    num_attention_heads: Heads = 16
    num_key_value_heads: Heads | None = 16
    head_dim: HeadDim | None = 256
    max_position_embeddings: Positions = 8192
    tie_word_embeddings: bool = True
    hidden_act: Literal["gelu", "gelu_pytorch_tanh"] = "gelu_pytorch_tanh"  # type: ignore[assignment]
    use_bidirectional_attention: bool = False

    def features(self, values: Values) -> dict[str, Any]:
        if self.use_bidirectional_attention:
            raise refuse("use_bidirectional_attention", True, "not supported")
        return {
            **super().features(values),
            "norm_offset": 1.0,
            "activation": "gelu_tanh",
            "embedding_scale": self.hidden_size**0.5,
        }


class Gemma2Config(GemmaConfig, kw_only=True):
    """Keys and defaults of Gemma2Config; null caps nothing."""

    hidden_size: Width = 2304
    intermediate_size: Width = 9216
    num_hidden_layers: Layers = 26
    num_attention_heads: Heads = 8
    num_key_value_heads: Heads | None = 4
    hidden_activation: Literal["gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    query_pre_attn_scalar: Scalar = 256.0
    sliding_window: Positions | None = 4096
    layer_types: list[LayerType] | None = None
    attn_logit_softcapping: Cap | None = 50.0
    final_logit_softcapping: Cap | None = 30.0

    def features(self, values: Values) -> dict[str, Any]:
        return {
            **super().features(values),
            "windows": self.sliding_windows(self.sliding_window, self.types()),
            "has_post_norms": True,
            "attention_scale": self.query_pre_attn_scalar**-0.5,
            "score_cap": self.attn_logit_softcapping or 0.0,
            "logit_cap": self.final_logit_softcapping or 0.0,
        }

    def types(self) -> list[LayerType]:
        """The type of each layer: local and global in turn, where the file does not say."""
        return self.types_by_period(2) if self.layer_types is None else self.layer_types
