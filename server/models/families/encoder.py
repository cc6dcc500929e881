"""Encoders of BERT's kind: every layer attends to both sides, and the stream is normed after each branch.

What they have in common is one row of models/traits.py, which plans read too. Differences are names, positions and
token types. Defaults are those of the Hugging Face config classes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from neuronserve.server.models.config_values import Epsilon, Heads, Layers, Positions, Values, Vocab, Width, refuse
from neuronserve.server.models.names import Names
from neuronserve.server.models.rope import check_ropes
from neuronserve.server.models.spec import Activation, ModelSpec
from neuronserve.server.models.traits import TRAITS

HiddenAct = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish"]
ACTIVATIONS: dict[HiddenAct, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
Count = Annotated[int, Meta(ge=0, le=1 << 16)]
FROM_TENSORFLOW = ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"))
# In files of old; what they hold follows from the rest.
LEFTOVERS = ("embeddings.position_ids",)


class EncoderConfig(msgspec.Struct, kw_only=True):
    """What every encoder's config.json has, under BERT's names."""

    vocab_size: Vocab = 30_522
    hidden_size: Width = 768
    num_hidden_layers: Layers = 12
    num_attention_heads: Heads = 12
    intermediate_size: Width = 3072
    max_position_embeddings: Positions = 512
    hidden_act: HiddenAct = "gelu"
    layer_norm_eps: Epsilon = 1e-12

    model_type = "bert"  # the row of models/traits.py

    def spec(self, architecture: str, values: Values) -> ModelSpec:
        """The model; `values` are all of the file. Raises ConfigError for values that contradict each other."""
        hidden, heads = self.hidden_size, self.num_attention_heads
        if hidden % heads:
            raise refuse("hidden_size", hidden, f"not a multiple of num_attention_heads, {heads}")
        if hidden // heads < 8:
            raise refuse("hidden_size", hidden, f"less than 8 for each of {heads} heads")
        spec = ModelSpec(
            architecture=architecture,
            num_layers=self.num_hidden_layers,
            hidden_size=hidden,
            intermediate_size=self.intermediate_size,
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=hidden // heads,
            vocab_size=self.vocab_size,
            rms_norm_eps=self.layer_norm_eps,
            **{"max_position": self.max_position_embeddings, **self.features(architecture, values)},
        )
        check_ropes(spec.distinct_ropes, spec.head_dim)
        return spec

    def features(self, architecture: str, values: Values) -> dict[str, Any]:
        """The fields of the model's spec that the family sets; without rotary embeddings."""
        del architecture, values
        ropes = (None,) * self.num_hidden_layers
        return {**TRAITS[self.model_type], "activation": ACTIVATIONS[self.hidden_act], "ropes": ropes}


def bert_words(prefix: str) -> dict[str, str]:
    """BERT's names of modules."""
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

    def features(self, architecture: str, values: Values) -> dict[str, Any]:
        return {
            **super().features(architecture, values),
            "max_position": self.max_position_embeddings - self.unused_positions,
            "num_positions": self.max_position_embeddings,
            "first_position": self.unused_positions,
            "num_token_types": self.type_vocab_size,
            "has_pooler": self.has_pooler(architecture),
            "names": replace(Names.of(bert_words(self.prefix), self.prefix, LEFTOVERS), old_endings=FROM_TENSORFLOW),
        }

    @property
    def unused_positions(self) -> int:
        """Rows of the positions' table before the first token's."""
        return 0

    def has_pooler(self, architecture: str) -> bool:
        """Whether the class has a dense layer over the first token."""
        return architecture.endswith(("Model", "ForSequenceClassification"))


class RobertaConfig(BertConfig, kw_only=True):
    """RoBERTa, XLM-R, CamemBERT: positions begin after the padding's; classes with a head have no pooler."""

    vocab_size: Vocab = 50_265
    pad_token_id: Annotated[int, Meta(ge=0, le=64)] = 1

    prefix = "roberta."

    @property
    def unused_positions(self) -> int:
        unused = self.pad_token_id + 1
        if self.max_position_embeddings <= unused:
            raise refuse("max_position_embeddings", self.max_position_embeddings, f"the first {unused} are no token's")
        return unused

    def has_pooler(self, architecture: str) -> bool:
        return architecture.endswith("Model")


class MPNetConfig(RobertaConfig, kw_only=True):
    """MPNet: no token types, and a bias of scores by distance, the same in all layers."""

    vocab_size: Vocab = 30_527
    relative_attention_num_buckets: Annotated[int, Meta(ge=4, le=4096, multiple_of=4)] = 32

    prefix = "mpnet."

    def features(self, architecture: str, values: Values) -> dict[str, Any]:
        if self.relative_attention_num_buckets != 32:
            raise refuse("relative_attention_num_buckets", self.relative_attention_num_buckets, "only 32 is supported")
        words = bert_words(self.prefix) | {
            **{f"self_attn.{name}_proj": f"attention.attn.{name}" for name in "qkvo"},
            "post_attention_layernorm": "attention.LayerNorm",
            "model.relative_attention_bias": f"{self.prefix}encoder.relative_attention_bias",
        }
        return {
            **super().features(architecture, values),
            "num_token_types": 0,
            "num_distance_buckets": self.relative_attention_num_buckets,
            "names": Names.of(words, self.prefix, LEFTOVERS),
        }


class DistilBertConfig(EncoderConfig, kw_only=True):
    """DistilBERT: BERT without token types and pooler, under names of its own."""

    hidden_size: Width = msgspec.field(default=768, name="dim")
    num_hidden_layers: Layers = msgspec.field(default=6, name="n_layers")
    num_attention_heads: Heads = msgspec.field(default=12, name="n_heads")
    intermediate_size: Width = msgspec.field(default=3072, name="hidden_dim")
    hidden_act: HiddenAct = msgspec.field(default="gelu", name="activation")
    sinusoidal_pos_embds: bool = False  # the table is in the files either way

    model_type = "distilbert"

    def features(self, architecture: str, values: Values) -> dict[str, Any]:
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
        return {
            **super().features(architecture, values),
            "num_positions": self.max_position_embeddings,
            "names": Names.of(words, "distilbert.", LEFTOVERS),
        }
