"""GPT-J, CodeGen and GPT-Neo: separate projections without biases, under names of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta, field

from ..config_values import Epsilon, Heads, Layers, Positions, Values, Width, refuse
from ..layer import AttentionSpec, RopeSpec
from ..names import Names
from ..spec import EmbeddingSpec
from .classic import ClassicConfig, GPT2Keys
from .family import ActivationName

_BLOCKS = {
    "model.embed_tokens": "transformer.wte",
    "model.embed_positions": "transformer.wpe",
    "model.norm": "transformer.ln_f",
    "model.layers": "transformer.h",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
}
_GPTJ = {**_BLOCKS, "self_attn": "attn", "self_attn.o_proj": "attn.out_proj", "up_proj": "fc_in", "down_proj": "fc_out"}
GPTJ = Names.of(_GPTJ, "transformer.", (".attn.bias", ".attn.masked_bias"))
_CODEGEN = _GPTJ | dict.fromkeys((f"self_attn.{name}_proj" for name in "qkv"), "attn.qkv_proj")
# There is a block for each accelerator of its training.
CODEGEN = replace(Names.of(_CODEGEN, "transformer.", (".attn.causal_mask",)), blocks=4)
GPT_NEO = Names.of(
    {
        **_BLOCKS,
        "self_attn": "attn.attention",
        "self_attn.o_proj": "attn.attention.out_proj",
        "up_proj": "c_fc",
        "down_proj": "c_proj",
    },
    "transformer.",
    (".attention.bias", ".attention.masked_bias"),
)


class GPTJConfig(GPT2Keys, kw_only=True):
    """Keys and defaults of GPTJConfig: one norm for both branches, side by side; the output layer has a bias."""

    rotary_dim: Annotated[int, Meta(ge=2, le=1024, multiple_of=2)] | None = 64

    norm_placement = "parallel"
    own_names = GPTJ
    head_has_bias = True

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), has_qkv_bias=False, has_o_bias=False)

    def ropes(self, _: Values) -> Sequence[RopeSpec]:
        size = self.head_size()
        if (self.rotary_dim or 0) > size:
            raise refuse("rotary_dim", self.rotary_dim, f"more than the elements of a head, which are {size}")
        share = (self.rotary_dim + 0.5) / size if self.rotary_dim not in (None, size) else 1.0  # rounded down
        return self.on_all(RopeSpec(partial_factor=share, is_interleaved=True))


class CodeGenConfig(GPTJConfig, kw_only=True):
    """Keys and defaults of CodeGenConfig: GPT-J with one projection of queries, values and keys."""

    rotary_dim: Annotated[int, Meta(ge=2, le=1024, multiple_of=2)] = 64

    own_names = CODEGEN

    def kv_heads(self) -> int:
        if self.num_attention_heads % CODEGEN.blocks:
            raise refuse("n_head", self.num_attention_heads, f"not a multiple of {CODEGEN.blocks}")
        return super().kv_heads()


class GPTNeoConfig(ClassicConfig, kw_only=True):
    """Keys and defaults of GPTNeoConfig: learned positions, scores without a scale, windows on some layers."""

    intermediate_size: Width = 0  # 0: four times the hidden size
    num_hidden_layers: Layers = field(default=24, name="num_layers")
    num_attention_heads: Heads = field(default=16, name="num_heads")
    rms_norm_eps: Epsilon = field(default=1e-5, name="layer_norm_epsilon")
    hidden_act: ActivationName = field(default="gelu_new", name="activation_function")
    window_size: Positions = 256
    attention_types: tuple[tuple[tuple[Literal["global", "local"], ...], Layers], ...] = ((("global", "local"), 12),)

    own_names = GPT_NEO

    def __post_init__(self) -> None:
        self.intermediate_size = self.intermediate_size or 4 * self.hidden_size

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), has_qkv_bias=False, scale=1.0)

    def windows(self) -> Sequence[int]:
        types = [kind for kinds, count in self.attention_types for kind in kinds * count]
        if len(types) != self.num_hidden_layers:
            raise refuse("attention_types", self.attention_types, f"must name {self.num_hidden_layers} layers")
        return [self.window_size * (kind == "local") for kind in types]

    def embedding(self) -> EmbeddingSpec:
        return EmbeddingSpec(self.vocab_size, self.hidden_size, num_positions=self.max_position_embeddings)
