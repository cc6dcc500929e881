"""BERT and encoders like it: every layer attends to both sides, and the stream is normed after each branch.

They differ in names, positions and token types. Defaults are those of the Hugging Face config classes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from ..config_values import refuse
from ..layer import AttentionSpec, NetworkSpec, NormPlacement, RopeSpec
from ..names import Names
from ..spec import EmbeddingSpec
from .family import ACTIVATIONS, ActivationName, FamilyConfig

Count = Annotated[int, Meta(ge=0, le=1 << 16)]
FROM_TENSORFLOW = ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"))
# Tensors of older files, whose values follow from the rest.
LEFTOVERS = ("embeddings.position_ids",)


class EncoderConfig(FamilyConfig, kw_only=True):
    """Keys of every encoder, under BERT's names."""

    hidden_act: ActivationName = "gelu"

    kind = "encoder"
    norm_placement: ClassVar[NormPlacement] = "stream"
    norm_kind = "layer"

    def embedding(self) -> EmbeddingSpec:
        rows = self.max_position_embeddings
        return EmbeddingSpec(self.vocab_size, self.hidden_size, num_positions=rows, has_norm=True)

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), has_qkv_bias=True, has_o_bias=True)

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, ACTIVATIONS[self.hidden_act], is_gated=False, has_bias=True)


def bert_words(prefix: str) -> dict[str, str]:
    """Return BERT's names of modules, after `prefix`."""
    return {
        "model.embed_tokens": f"{prefix}embeddings.word_embeddings",
        "model.embed_positions": f"{prefix}embeddings.position_embeddings",
        "model.embed_token_types": f"{prefix}embeddings.token_type_embeddings",
        "model.embed_norm": f"{prefix}embeddings.LayerNorm",
        "model.layers": f"{prefix}encoder.layer",
        "self_attn.q_proj": "attention.self.query",
        "self_attn.k_proj": "attention.self.key",
        "self_attn.v_proj": "attention.self.value",
        "self_attn.o_proj": "attention.output.dense",
        "post_attention_layernorm": "attention.output.LayerNorm",
        "mlp.up_proj": "intermediate.dense",
        "mlp.down_proj": "output.dense",
        "post_feedforward_layernorm": "output.LayerNorm",
        "pooler.dense": f"{prefix}pooler.dense",
    }


class BertConfig(EncoderConfig, kw_only=True):
    """BERT: learned positions from 0 on, two types of tokens."""

    type_vocab_size: Count = 2
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False

    prefix = "bert."

    def embedding(self) -> EmbeddingSpec:
        embedding = super().embedding()
        return replace(embedding, first_position=self.unused_positions, num_token_types=self.type_vocab_size)

    def max_position(self) -> int:
        return self.max_position_embeddings - self.unused_positions

    def names(self) -> Names:
        return replace(Names.of(bert_words(self.prefix), self.prefix, LEFTOVERS), old_endings=FROM_TENSORFLOW)

    @property
    def unused_positions(self) -> int:
        """Rows of the positions' table before the first token's."""
        return 0

    def has_pooler(self, architecture: str) -> bool:
        return architecture.endswith(("Model", "ForSequenceClassification"))


class RobertaConfig(BertConfig, kw_only=True):
    """RoBERTa, XLM-R, CamemBERT: positions begin after those of padding; classes with a head have no pooler."""

    pad_token_id: Annotated[int, Meta(ge=0, le=64)] = 1

    prefix = "roberta."

    @property
    def unused_positions(self) -> int:
        unused = self.pad_token_id + 1
        if self.max_position_embeddings <= unused:
            raise refuse("max_position_embeddings", self.max_position_embeddings, f"the first {unused} are for padding")
        return unused

    def has_pooler(self, architecture: str) -> bool:
        return architecture.endswith("Model")


class MPNetConfig(RobertaConfig, kw_only=True):
    """MPNet: no token types, and a bias of scores by distance, the same in all layers."""

    relative_attention_num_buckets: Annotated[int, Meta(ge=4, le=4096, multiple_of=4)] = 32

    prefix = "mpnet."

    def embedding(self) -> EmbeddingSpec:
        return replace(super().embedding(), num_token_types=0)

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        buckets = self.relative_attention_num_buckets
        if buckets != 32:
            raise refuse("relative_attention_num_buckets", buckets, "only 32 is supported")
        return replace(super().attention(rope, window), num_distance_buckets=buckets)

    def names(self) -> Names:
        words = bert_words(self.prefix) | {
            **{f"self_attn.{name}_proj": f"attention.attn.{name}" for name in "qkvo"},
            "post_attention_layernorm": "attention.LayerNorm",
            "model.relative_attention_bias": f"{self.prefix}encoder.relative_attention_bias",
        }
        return Names.of(words, self.prefix, LEFTOVERS)


class DistilBertConfig(EncoderConfig, kw_only=True):
    """DistilBERT: BERT without token types and pooler, under names of its own."""

    sinusoidal_pos_embds: bool = False  # the table is in the files either way

    def names(self) -> Names:
        words = {
            "model.embed_tokens": "distilbert.embeddings.word_embeddings",
            "model.embed_positions": "distilbert.embeddings.position_embeddings",
            "model.embed_norm": "distilbert.embeddings.LayerNorm",
            "model.layers": "distilbert.transformer.layer",
            **{f"self_attn.{name}_proj": f"attention.{name}_lin" for name in "qkv"},
            "self_attn.o_proj": "attention.out_lin",
            "post_attention_layernorm": "sa_layer_norm",
            "mlp.up_proj": "ffn.lin1",
            "mlp.down_proj": "ffn.lin2",
            "post_feedforward_layernorm": "output_layer_norm",
        }
        return Names.of(words, "distilbert.", LEFTOVERS)
