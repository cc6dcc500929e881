"""GPT-2, OPT, GPT-NeoX, Persimmon, Phi 1 to 2: layer norms, biases everywhere, networks without a gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

from msgspec import Meta, field

from ..config_values import Epsilon, Heads, Layers, Positions, Values, Width, refuse
from ..layer import AttentionSpec, NetworkSpec, NormPlacement, RopeSpec
from ..names import ROPE_FREQUENCIES, Names
from ..rope import Theta, rope_object, rope_of
from ..spec import EmbeddingSpec, NormKind
from .decoder import DecoderConfig
from .family import ACTIVATIONS, ActivationName

OPT_PADDING_ROWS = 2  # rows of the positions' table before the first token's

GPT2 = Names(
    tuple(
        {
            "model.embed_tokens": "transformer.wte",
            "model.embed_positions": "transformer.wpe",
            "model.norm": "transformer.ln_f",
            "model.layers": "transformer.h",
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
            **dict.fromkeys((f"self_attn.{name}_proj" for name in "qkv"), "attn.c_attn"),
            "self_attn.o_proj": "attn.c_proj",
            "up_proj": "c_fc",
            "down_proj": "c_proj",
        }.items()
    ),
    prefix="transformer.",
    leftovers=(".attn.bias", ".attn.masked_bias"),  # masks
    is_transposed=True,
)

_OPT = {
    "model.embed_tokens": "model.decoder.embed_tokens",
    "model.embed_positions": "model.decoder.embed_positions",
    "model.norm": "model.decoder.final_layer_norm",
    "model.layers": "model.decoder.layers",
    **{f"model.project_{way}": f"model.decoder.project_{way}" for way in ("in", "out")},
    "self_attn.o_proj": "self_attn.out_proj",
    "mlp.up_proj": "fc1",
    "mlp.down_proj": "fc2",
}
OPT_NORMS_BEFORE = Names.of(
    {**_OPT, "input_layernorm": "self_attn_layer_norm", "post_attention_layernorm": "final_layer_norm"}, "model."
)
OPT_NORMS_AFTER = Names.of(
    {**_OPT, "post_attention_layernorm": "self_attn_layer_norm", "post_feedforward_layernorm": "final_layer_norm"},
    "model.",
)

NEOX = Names(
    tuple(
        {
            "model": "gpt_neox",
            "embed_tokens": "embed_in",
            "model.embed_tokens": "gpt_neox.embed_in",
            "model.norm": "gpt_neox.final_layer_norm",
            **dict.fromkeys((f"self_attn.{name}_proj" for name in "qkv"), "attention.query_key_value"),
            "self_attn.o_proj": "attention.dense",
            "up_proj": "dense_h_to_4h",
            "down_proj": "dense_4h_to_h",
        }.items()
    ),
    prefix="gpt_neox.",
    leftovers=(".attention.bias", ".attention.masked_bias", ROPE_FREQUENCIES),
    take_turns=True,
    old_names=(("embed_out.weight", "lm_head.weight"),),
)


_PHI_HEADS = {f"self_attn.{name}_norm": f"self_attn.{name}_layernorm" for name in "qk"}
_PERSIMMON = {
    **_PHI_HEADS,
    **dict.fromkeys((f"self_attn.{name}_proj" for name in "qkv"), "self_attn.query_key_value"),
    "self_attn.o_proj": "self_attn.dense",
    "up_proj": "dense_h_to_4h",
    "down_proj": "dense_4h_to_h",
    "model.norm": "model.final_layernorm",
}
PERSIMMON = replace(Names.of(_PERSIMMON, "model."), take_turns=True)
PHI = Names.of(
    {
        **_PHI_HEADS,
        "self_attn.o_proj": "self_attn.dense",
        "up_proj": "fc1",
        "down_proj": "fc2",
        "model.norm": "model.final_layernorm",
    },
    prefix="model.",
)


class ClassicConfig(DecoderConfig, kw_only=True):
    """Layer norms, networks without a gate and all biases."""

    rms_norm_eps: Epsilon = field(default=1e-5, name="layer_norm_eps")
    hidden_act: ActivationName = "gelu"  # type: ignore[assignment]

    norm_kind: ClassVar[NormKind] = "layer"

    def ropes(self, _: Values) -> Sequence[RopeSpec | None]:
        return self.on_all(None)

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, ACTIVATIONS[self.hidden_act], is_gated=False, has_bias=True)

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), has_qkv_bias=True, has_o_bias=True)

    def kv_heads(self) -> int:
        heads = self.num_attention_heads
        if self.num_key_value_heads not in (None, heads):
            raise refuse(
                "num_key_value_heads", self.num_key_value_heads, f"must be as many as heads, which are {heads}"
            )
        return heads

    def head_size(self) -> int:
        heads = self.num_attention_heads
        if self.head_dim not in (None, self.hidden_size // heads):
            raise refuse(
                "head_dim", self.head_dim, f"must be {self.hidden_size // heads}, hidden_size over {heads} heads"
            )
        return super().head_size()


class GPT2Keys(ClassicConfig, kw_only=True):
    """GPT-2's names of keys."""

    hidden_size: Width = field(default=768, name="n_embd")
    intermediate_size: Width = field(default=0, name="n_inner")  # 0: four times the hidden size
    num_hidden_layers: Layers = field(default=12, name="n_layer")
    num_attention_heads: Heads = field(default=12, name="n_head")
    max_position_embeddings: Positions = field(default=1024, name="n_positions")
    rms_norm_eps: Epsilon = field(default=1e-5, name="layer_norm_epsilon")
    hidden_act: ActivationName = field(default="gelu_new", name="activation_function")

    def __post_init__(self) -> None:
        self.intermediate_size = self.intermediate_size or 4 * self.hidden_size


class GPT2Config(GPT2Keys, kw_only=True):
    """Keys and defaults of GPT2Config."""

    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False

    own_names = GPT2

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        if not self.scale_attn_weights:
            raise refuse("scale_attn_weights", False, "attention without a scale of its scores is not supported")
        if self.scale_attn_by_inverse_layer_idx:
            raise refuse("scale_attn_by_inverse_layer_idx", True, "a scale of scores for each layer is not supported")
        if self.add_cross_attention:
            raise refuse("add_cross_attention", True, "attention to another text is not supported")
        return super().attention(rope, window)

    def embedding(self) -> EmbeddingSpec:
        return EmbeddingSpec(self.vocab_size, self.hidden_size, num_positions=self.max_position_embeddings)


class OPTConfig(ClassicConfig, kw_only=True):
    """Keys and defaults of OPTConfig."""

    intermediate_size: Width = field(default=3072, name="ffn_dim")
    hidden_act: ActivationName = field(default="relu", name="activation_function")
    word_embed_proj_dim: Width | None = None
    do_layer_norm_before: bool = True
    remove_final_layer_norm: bool = field(default=False, name="_remove_final_layer_norm")
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True

    own_names: ClassVar[Names] = OPT_NORMS_BEFORE

    def __post_init__(self) -> None:
        self.rms_norm_eps = 1e-5  # the default of PyTorch: the family's code reads no key

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        if self.remove_final_layer_norm:
            raise refuse("_remove_final_layer_norm", True, "a model without its last norm is not supported")
        if not self.layer_norm_elementwise_affine:
            raise refuse("layer_norm_elementwise_affine", False, "norms without weights are not supported")
        attention = super().attention(rope, window)
        return replace(attention, has_qkv_bias=self.enable_bias, has_o_bias=self.enable_bias)

    def network(self, size: int) -> NetworkSpec:
        return replace(super().network(size), has_bias=self.enable_bias)

    def embedding(self) -> EmbeddingSpec:
        size = self.word_embed_proj_dim or self.hidden_size
        if size > self.hidden_size:
            raise refuse("word_embed_proj_dim", size, f"more than hidden_size, which is {self.hidden_size}")
        rows = self.max_position_embeddings + OPT_PADDING_ROWS
        return EmbeddingSpec(self.vocab_size, size, num_positions=rows, first_position=OPT_PADDING_ROWS)

    def placement(self) -> NormPlacement:
        return "before" if self.do_layer_norm_before else "stream"

    def names(self) -> Names:
        return self.own_names if self.do_layer_norm_before else OPT_NORMS_AFTER


class GPTNeoXConfig(ClassicConfig, kw_only=True):
    """Keys and defaults of GPTNeoXConfig."""

    use_parallel_residual: bool = True
    rotary_pct: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.25
    rotary_emb_base: Theta = 10_000.0

    own_names = NEOX

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        attention = super().attention(rope, window)
        return replace(attention, has_qkv_bias=self.attention_bias, has_o_bias=self.attention_bias)

    def ropes(self, values: Values) -> Sequence[RopeSpec | None]:
        path, rope = rope_object(values)
        outer = {**values, "partial_rotary_factor": self.rotary_pct, "rope_theta": self.rotary_emb_base}
        length = self.max_position_embeddings
        return self.on_all(rope_of(outer, rope, path, length, self.rotary_emb_base, may_be_partial=True))

    def placement(self) -> NormPlacement:
        return "parallel_each" if self.use_parallel_residual else "before"


class PhiConfig(ClassicConfig, kw_only=True):
    """Keys and defaults of PhiConfig: one norm for both branches, and a bias of the output layer, too."""

    qk_layernorm: bool = False

    norm_placement: ClassVar[NormPlacement] = "parallel"
    own_names = PHI
    head_has_bias = True

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), qk_norm="head_layer" if self.qk_layernorm else "none")

    def ropes(self, values: Values) -> Sequence[RopeSpec | None]:
        return self.on_all(self.partial_rope(values, 0.5))


class PersimmonConfig(PhiConfig, kw_only=True):
    """Keys and defaults of PersimmonConfig: Phi's options in GPT-NeoX's layers, without a bias of the output layer."""

    norm_placement = "before"
    own_names = PERSIMMON
    head_has_bias = False
