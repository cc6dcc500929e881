"""Encoders like BERT that rotate heads: Nomic BERT, Jina Embeddings v3 and GTE.

Names of tensors are those of published files, which transformers writes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from ..config_values import HeadDim, Heads, Layers, Positions, Values, Width
from ..layer import AttentionSpec, NetworkSpec, RopeSpec
from ..rope import DEFAULT_THETA, Theta, read_rope
from ..spec import EmbeddingSpec
from .encoder import BertConfig
from .family import ACTIVATIONS


class RotaryBertConfig(BertConfig, kw_only=True):
    """BERT without a table of positions."""

    rotary_emb_base: Theta = DEFAULT_THETA

    def embedding(self) -> EmbeddingSpec:
        return replace(super().embedding(), num_positions=0)

    def ropes(self, values: Values) -> Sequence[RopeSpec]:
        return self.on_all(read_rope(values, self.max_position_embeddings, self.rotary_emb_base))


class NomicBertConfig(RotaryBertConfig, kw_only=True):
    """Nomic BERT: gated networks and no biases. The publisher's files name sizes as GPT-2 does."""

    hidden_size: Width = field(default=768, name="n_embd")
    num_hidden_layers: Layers = field(default=12, name="n_layer")
    num_attention_heads: Heads = field(default=12, name="n_head")
    intermediate_size: Width = field(default=3072, name="n_inner")
    max_position_embeddings: Positions = field(default=2048, name="n_positions")
    layer_norm_epsilon: Annotated[float, Meta(ge=1e-12, le=1e-12)] = 1e-12
    head_dim: HeadDim | None = None
    activation_function: Literal["swiglu"] = "swiglu"
    num_experts: Literal[0] = 0
    rotary_emb_fraction: Annotated[float, Meta(ge=1.0, le=1.0)] = 1.0
    rotary_emb_interleaved: Literal[False] = False
    rotary_scaling_factor: Literal[1] | None = None
    prenorm: Literal[False] = False
    qkv_proj_bias: Literal[False] = False
    mlp_fc1_bias: Literal[False] = False

    comes_with_code = True
    prefix = "nomic_bert."
    pooled = ("ForSequenceClassification",)
    layer_names = "attn.Wqkv attn.Wqkv attn.Wqkv attn.out_proj norm1 mlp.fc11 mlp.fc2 norm2 mlp.fc12"
    other_names: ClassVar[Mapping[str, str]] = {"model.embed_norm": "emb_ln", "model.layers": "encoder.layers"}

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), has_qkv_bias=False, has_o_bias=False)

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, ACTIVATIONS[self.hidden_act])

    def head_size(self) -> int:
        return self.head_dim or super().head_size()


class JinaEmbeddingsV3Config(RotaryBertConfig, kw_only=True):
    """Jina Embeddings v3: XLM-R with rotated heads."""

    prefix = "roberta."
    pooled = ("Model",)
    layer_names = "mixer.Wqkv mixer.Wqkv mixer.Wqkv mixer.out_proj norm1 mlp.fc1 mlp.fc2 norm2"
    other_names: ClassVar[Mapping[str, str]] = {"model.embed_norm": "emb_ln", "model.layers": "encoder.layers"}


class GteConfig(RotaryBertConfig, kw_only=True):
    """GTE: gated networks, whose first matrix has no bias."""

    prefix = "gte."
    pooled = ("ForSequenceClassification",)
    is_up_first = True
    layer_names = (
        "attention.qkv_proj attention.qkv_proj attention.qkv_proj attention.o_proj attn_ln"
        " mlp.up_gate_proj mlp.down_proj mlp_ln mlp.up_gate_proj"
    )

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, ACTIVATIONS[self.hidden_act], has_bias=True, lacks_first_bias=True)
