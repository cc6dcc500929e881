"""Families whose scores fall with distance, by a slope of each head (ALiBi), in place of positions; and Falcon.

BLOOM, MPT, Baichuan 13B and Falcon-RW have slopes. Baichuan 7B and other Falcons are rotated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from ..config_values import Epsilon, Heads, Layers, Positions, Values, Width, read_record, refuse
from ..layer import AttentionSpec, NetworkSpec, NormPlacement, RopeSpec
from ..names import Names
from ..rope import read_rope
from ..spec import EmbeddingSpec
from .classic import ClassicConfig
from .decoder import DecoderConfig

_BLOOM = {
    "model.embed_tokens": "transformer.word_embeddings",
    "model.embed_norm": "transformer.word_embeddings_layernorm",
    "model.norm": "transformer.ln_f",
    "model.layers": "transformer.h",
    **dict.fromkeys((f"self_attn.{name}_proj" for name in "qkv"), "self_attention.query_key_value"),
    "self_attn.o_proj": "self_attention.dense",
    "up_proj": "dense_h_to_4h",
    "down_proj": "dense_4h_to_h",
}
BLOOM = replace(Names.of(_BLOOM, "transformer."), take_turns=True)
FALCON_NORMS = {"input_layernorm": "ln_attn", "post_attention_layernorm": "ln_mlp"}
MPT = Names.of(
    {
        "model.embed_tokens": "transformer.wte",
        "model.norm": "transformer.norm_f",
        "model.layers": "transformer.blocks",
        "input_layernorm": "norm_1",
        "post_attention_layernorm": "norm_2",
        **dict.fromkeys((f"self_attn.{name}_proj" for name in "qkv"), "attn.Wqkv"),
        "self_attn.o_proj": "attn.out_proj",
        "mlp": "ffn",
    },
    "transformer.",
)
BAICHUAN = Names.of(dict.fromkeys((f"{name}_proj" for name in "qkv"), "W_pack"), "model.")
BAICHUAN2_VOCAB = 125_696
TRAINED_LENGTH = 2048  # of BLOOM (arXiv 2211.05100); slopes have no limit


def alibi_slopes(heads: int, largest: float = 8.0, factor: float = 1.0) -> tuple[float, ...]:
    """Return the slope of each head, times `factor` (arXiv 2108.12409): from 2 ** -(largest / n) on to 2 ** -largest.

    n is the power of two up from the number of heads. Of the n slopes the even ones come first, then the odd ones.
    """
    n = 1 << math.ceil(math.log2(heads))
    slopes = [factor * 2.0 ** -(largest * i / n) for i in range(1, n + 1)]
    return tuple(slopes if n == heads else (slopes[1::2] + slopes[::2])[:heads])


class BloomConfig(ClassicConfig, kw_only=True):
    """Keys and defaults of BloomConfig."""

    intermediate_size: Width = 0  # four times the hidden size
    num_hidden_layers: Layers = field(default=2, name="n_layer")
    num_attention_heads: Heads = field(default=8, name="n_head")
    n_embed: Width | None = None  # the hidden size, in old files
    max_position_embeddings: Positions = field(default=TRAINED_LENGTH, name="seq_length")
    rms_norm_eps: Epsilon = field(default=1e-5, name="layer_norm_epsilon")
    apply_residual_connection_post_layernorm: bool = False

    own_names = BLOOM

    def __post_init__(self) -> None:
        self.hidden_size = self.n_embed or self.hidden_size
        self.intermediate_size = 4 * self.hidden_size

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        if self.apply_residual_connection_post_layernorm:
            raise refuse("apply_residual_connection_post_layernorm", True, "not supported")
        return replace(super().attention(rope, window), slopes=alibi_slopes(self.num_attention_heads))

    def embedding(self) -> EmbeddingSpec:
        return EmbeddingSpec(self.vocab_size, self.hidden_size, has_norm=True)


class FalconConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of FalconConfig: a norm for each branch, one for both, or branches one after the other."""

    intermediate_size: Width = field(default=0, name="ffn_hidden_size")  # 0: four times the hidden size
    num_key_value_heads: Heads | None = field(default=None, name="num_kv_heads")
    n_layer: Layers | None = None  # in old files
    n_head: Heads | None = None
    rms_norm_eps: Epsilon = field(default=1e-5, name="layer_norm_epsilon")
    attention_bias: bool = field(default=False, name="bias")
    num_ln_in_parallel_attn: Literal[1, 2] | None = None
    alibi: bool = False
    new_decoder_architecture: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    activation: Literal["gelu"] = "gelu"

    comes_with_code = True
    norm_kind = "layer"

    def __post_init__(self) -> None:
        self.intermediate_size = self.intermediate_size or 4 * self.hidden_size
        self.num_hidden_layers = self.n_layer or self.num_hidden_layers
        self.num_attention_heads = self.n_head or self.num_attention_heads

    def kv_heads(self) -> int:
        if self.multi_query and not self.new_decoder_architecture:
            return 1
        return super().kv_heads() if self.new_decoder_architecture else self.num_attention_heads

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        # The family's code adds slopes before it scales scores.
        slopes = alibi_slopes(self.num_attention_heads, factor=self.head_size() ** -0.5) if self.alibi else ()
        return replace(super().attention(rope, window), slopes=slopes)

    def ropes(self, values: Values) -> Sequence[RopeSpec | None]:
        return self.on_all(None) if self.alibi else super().ropes(values)

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, "gelu", is_gated=False, has_bias=self.attention_bias)

    def placement(self) -> NormPlacement:
        if self.new_decoder_architecture and not self.parallel_attn:
            raise refuse("parallel_attn", False, "not supported with new_decoder_architecture")
        if not self.parallel_attn:
            return "before"
        return "parallel_each" if self._has_two_norms() else "parallel"

    def names(self) -> Names:
        words = {**_BLOOM, **FALCON_NORMS} if self._has_two_norms() else _BLOOM
        takes_turns = self.new_decoder_architecture or not self.multi_query
        return replace(Names.of(words, "transformer."), take_turns=takes_turns)

    def _has_two_norms(self) -> bool:
        return self.new_decoder_architecture and self.num_ln_in_parallel_attn != 1


class _MptAttention(msgspec.Struct):
    """Options of attention that change results, each with the only value that is computed, but for the last two."""

    attn_type: Literal["multihead_attention"] = "multihead_attention"
    clip_qkv: None = None
    qk_ln: Literal[False] = False
    prefix_lm: Literal[False] = False
    alibi: Literal[True] = True
    rope: Literal[False] = False
    softmax_scale: Annotated[float, Meta(gt=0.0, le=1e3)] | None = None
    alibi_bias_max: Annotated[float, Meta(gt=0.0, le=64.0)] = 8.0


class MptConfig(ClassicConfig, kw_only=True):
    """Keys and defaults of MptConfig; there are no biases."""

    hidden_size: Width = field(default=2048, name="d_model")
    intermediate_size: Width = 0  # four times the hidden size
    num_hidden_layers: Layers = field(default=24, name="n_layers")
    num_attention_heads: Heads = field(default=16, name="n_heads")
    max_position_embeddings: Positions = field(default=2048, name="max_seq_len")
    rms_norm_eps: Epsilon = field(default=1e-5, name="layer_norm_epsilon")
    expansion_ratio: Literal[4] = 4
    no_bias: Literal[True] = True
    norm_type: Literal["low_precision_layernorm", "layernorm"] = "low_precision_layernorm"
    logit_scale: None = None
    attn_config: dict[str, Any] = field(default_factory=dict)

    comes_with_code = True
    norm_kind = "layer_no_bias"
    own_names = MPT

    def __post_init__(self) -> None:
        self.intermediate_size = 4 * self.hidden_size

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        keys, attention = read_record(self.attn_config, _MptAttention, "attn_config."), super().attention(rope, window)
        slopes = alibi_slopes(self.num_attention_heads, keys.alibi_bias_max)
        return replace(attention, scale=keys.softmax_scale, slopes=slopes, has_qkv_bias=False, has_o_bias=False)

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, "gelu", is_gated=False)


class BaichuanConfig(DecoderConfig, kw_only=True):
    """Keys of Baichuan's files. Those of 13B have slopes and state `model_max_length` in place of positions."""

    model_max_length: Positions = 4096

    comes_with_code = True
    own_names = BAICHUAN

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        if self.vocab_size == BAICHUAN2_VOCAB:
            raise refuse("vocab_size", self.vocab_size, "Baichuan 2's output layer of normed rows is not supported")
        slopes = alibi_slopes(self.num_attention_heads) if rope is None else ()
        return replace(super().attention(rope, window), slopes=slopes)

    def ropes(self, values: Values) -> Sequence[RopeSpec | None]:
        if values.get("max_position_embeddings") is None:
            self.max_position_embeddings = self.model_max_length
            return self.on_all(None)
        return self.on_all(read_rope(values, self.max_position_embeddings))
