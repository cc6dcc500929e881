"""BERT and encoders like it: every layer attends to both sides, and the stream is normed after each branch.

They differ in names, positions and token types. Defaults are those of the Hugging Face config classes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ..config_values import Epsilon, Heads, Layers, Positions, Values, Vocab, Width, refuse
from ..layer import AttentionSpec, LayerSpec, NetworkSpec, NormPlacement, RopeSpec
from ..names import Names
from ..spec import EmbeddingSpec, NormSpec
from .family import ACTIVATIONS, ActivationName, FamilyConfig

Count = Annotated[int, Meta(ge=0, le=1 << 16)]
FROM_TENSORFLOW = ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"))
# Tensors of older files, whose values follow from the rest.
LEFTOVERS = ("embeddings.position_ids",)


class EncoderConfig(FamilyConfig, kw_only=True):
    """Keys of every encoder, under BERT's names."""

    vocab_size: Vocab = 30_522
    hidden_size: Width = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: Heads = 12
    intermediate_size: Width = 3072
    max_position_embeddings: Positions = 512
    hidden_act: ActivationName = "gelu"
    rms_norm_eps: Epsilon = msgspec.field(default=1e-12, name="layer_norm_eps")

    kind = "encoder"

    def embedding(self) -> EmbeddingSpec:
        rows = self.max_position_embeddings
        return EmbeddingSpec(self.vocab_size, self.hidden_size, num_positions=rows, has_norm=True)

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), has_qkv_bias=True, has_o_bias=True)

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, ACTIVATIONS[self.hidden_act], is_gated=False, has_bias=True)

    def placement(self) -> NormPlacement:
        return "stream"

    def norm(self) -> NormSpec:
        return NormSpec("layer", self.rms_norm_eps)


def bert_words(prefix: str) -> dict[str, str]:
    """Return BERT's names of modules, after `prefix`."""
    return {
        "model.embed_tokens": f"{prefix}embeddings.word_embeddings",
        "model.embed_positions": f"{prefix}embeddings.position_embeddings",
        "model.embed_token_types": f"{prefix}embeddings.token_type_embeddings",
        "model.embed_tasks": f"{prefix}embeddings.task_type_embeddings",
        "model.project_in": f"{prefix}embeddings_project",
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


class ErnieConfig(BertConfig, kw_only=True):
    """ERNIE: BERT with a table of tasks, whose first row is taken."""

    task_type_vocab_size: Count = 3
    use_task_id: bool = False

    prefix = "ernie."

    def embedding(self) -> EmbeddingSpec:
        return replace(super().embedding(), num_tasks=self.task_type_vocab_size * self.use_task_id)


class ElectraConfig(BertConfig, kw_only=True):
    """ELECTRA: BERT without a pooler, and embeddings that may be narrower than the stream."""

    hidden_size: Width = 256
    num_attention_heads: Heads = 4
    intermediate_size: Width = 1024
    embedding_size: Width = 128

    prefix = "electra."

    def embedding(self) -> EmbeddingSpec:
        size = self.embedding_size
        return replace(super().embedding(), size=size, is_projected=size != self.hidden_size)

    def has_pooler(self, _: str) -> bool:
        return False


class AlbertConfig(BertConfig, kw_only=True):
    """ALBERT: layers of a group have one set of weights; embeddings are narrower than the stream."""

    vocab_size: Vocab = 30_000
    hidden_size: Width = 4096
    num_attention_heads: Heads = 64
    intermediate_size: Width = 16_384
    hidden_act: ActivationName = "gelu_new"
    embedding_size: Width = 128
    num_hidden_groups: Layers = 1
    inner_group_num: Literal[1] = 1

    prefix = "albert."

    def embedding(self) -> EmbeddingSpec:
        return replace(super().embedding(), size=self.embedding_size, is_projected=True)

    def layers(self, values: Values) -> tuple[LayerSpec, ...]:
        layers, groups = super().layers(values), self.num_hidden_groups
        if groups > len(layers):
            raise refuse("num_hidden_groups", groups, f"there are {len(layers)} layers")
        return tuple(replace(layer, weights=i * groups // len(layers)) for i, layer in enumerate(layers))

    def names(self) -> Names:
        layer = "albert_layers.0."
        words = bert_words(self.prefix) | {
            "model.project_in": f"{self.prefix}encoder.embedding_hidden_mapping_in",
            "model.layers": f"{self.prefix}encoder.albert_layer_groups",
            **{
                f"self_attn.{short}_proj": f"{layer}attention.{name}"
                for short, name in {"q": "query", "k": "key", "v": "value", "o": "dense"}.items()
            },
            "post_attention_layernorm": f"{layer}attention.LayerNorm",
            "mlp.up_proj": f"{layer}ffn",
            "mlp.down_proj": f"{layer}ffn_output",
            "post_feedforward_layernorm": f"{layer}full_layer_layer_norm",
            "pooler.dense": f"{self.prefix}pooler",
        }
        return Names.of(words, self.prefix, LEFTOVERS)


class RobertaConfig(BertConfig, kw_only=True):
    """RoBERTa, XLM-R, CamemBERT: positions begin after those of padding; classes with a head have no pooler."""

    vocab_size: Vocab = 50_265
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


class RobertaPreLayerNormConfig(RobertaConfig, kw_only=True):
    """RoBERTa with norms before each branch and one at the end."""

    prefix = "roberta_prelayernorm."

    def placement(self) -> NormPlacement:
        return "before"

    def names(self) -> Names:
        words = bert_words(self.prefix) | {
            "input_layernorm": "attention.LayerNorm",
            "post_attention_layernorm": "intermediate.LayerNorm",
            "model.norm": f"{self.prefix}LayerNorm",
        }
        return Names.of(words, self.prefix, LEFTOVERS)


class XLMRobertaXLConfig(RobertaPreLayerNormConfig, kw_only=True):
    """XLM-R XL and XXL: embeddings are not normed."""

    vocab_size: Vocab = 250_880
    hidden_size: Width = 2560
    num_hidden_layers: Layers = 36
    num_attention_heads: Heads = 32
    intermediate_size: Width = 10_240
    max_position_embeddings: Positions = 514
    rms_norm_eps: Epsilon = msgspec.field(default=1e-5, name="layer_norm_eps")
    type_vocab_size: Count = 1

    prefix = "roberta."

    def embedding(self) -> EmbeddingSpec:
        return replace(super().embedding(), has_norm=False)

    def names(self) -> Names:
        words = bert_words(self.prefix) | {
            "input_layernorm": "attention.self_attn_layer_norm",
            "post_attention_layernorm": "LayerNorm",
            "model.norm": f"{self.prefix}encoder.LayerNorm",
        }
        return Names.of(words, self.prefix, LEFTOVERS)


class MPNetConfig(RobertaConfig, kw_only=True):
    """MPNet: no token types, and a bias of scores by distance, the same in all layers."""

    vocab_size: Vocab = 30_527
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

    hidden_size: Width = msgspec.field(default=768, name="dim")
    num_hidden_layers: Layers = msgspec.field(default=6, name="n_layers")
    num_attention_heads: Heads = msgspec.field(default=12, name="n_heads")
    intermediate_size: Width = msgspec.field(default=3072, name="hidden_dim")
    hidden_act: ActivationName = msgspec.field(default="gelu", name="activation")
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
