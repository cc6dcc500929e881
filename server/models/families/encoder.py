"""BERT and encoders like it: every layer attends to both sides, and the stream is normed after each branch.

They differ in names, positions and token types. Defaults are those of the Hugging Face config classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from ..config_values import Epsilon, Heads, Layers, Values, Width, refuse
from ..layer import AttentionSpec, LayerSpec, NetworkSpec, NormPlacement, RopeSpec
from ..names import Names
from ..spec import EmbeddingSpec, NormKind
from .family import ACTIVATIONS, ActivationName, FamilyConfig

Count = Annotated[int, Meta(ge=0, le=1 << 16)]
FROM_TENSORFLOW = ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"))
NAMES = {  # BERT's, behind the prefix
    "model.embed_tokens": "embeddings.word_embeddings",
    "model.embed_positions": "embeddings.position_embeddings",
    "model.embed_token_types": "embeddings.token_type_embeddings",
    "model.embed_tasks": "embeddings.task_type_embeddings",
    "model.project_in": "embeddings_project",
    "model.embed_norm": "embeddings.LayerNorm",
    "model.layers": "encoder.layer",
    "pooler.dense": "pooler.dense",
}
# Tensors of older files, whose values follow from the rest.
LEFTOVERS = ("embeddings.position_ids",)


class EncoderConfig(FamilyConfig, kw_only=True):
    """Keys of every encoder, under BERT's names."""

    hidden_act: ActivationName = "gelu"
    rms_norm_eps: Epsilon = msgspec.field(default=1e-12, name="layer_norm_eps")

    kind = "encoder"
    norm_placement: ClassVar[NormPlacement] = "stream"
    norm_kind: ClassVar[NormKind] = "layer"
    prefix: ClassVar[str]
    # Names of a layer's modules: q k v o, norm of attention, up, down, norm of the network, gate.
    layer_names: ClassVar[str] = (
        "attention.self.query attention.self.key attention.self.value attention.output.dense"
        " attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm"
    )
    other_names: ClassVar[Mapping[str, str]] = {}  # that differ from BERT's
    is_up_first: ClassVar[bool] = False  # in one module of gate and up
    pooled: ClassVar[tuple[str, ...]] = ()  # endings of classes with a pooler

    def embedding(self) -> EmbeddingSpec:
        rows = self.max_position_embeddings
        return EmbeddingSpec(self.vocab_size, self.hidden_size, num_positions=rows, has_norm=True)

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), has_qkv_bias=True, has_o_bias=True)

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, ACTIVATIONS[self.hidden_act], is_gated=False, has_bias=True)

    def names(self) -> Names:
        is_before = self.placement() == "before"
        first, second = ("input", "post_attention") if is_before else ("post_attention", "post_feedforward")
        attention, ffn = (f"self_attn.{name}_proj" for name in "qkvo"), ("mlp.up_proj", "mlp.down_proj")
        layer = (*attention, f"{first}_layernorm", *ffn, f"{second}_layernorm", "mlp.gate_proj")
        whole = {key: self.prefix + name for key, name in {**NAMES, **self.other_names}.items()}
        words = whole | dict(zip(layer, self.layer_names.split(), strict=False))
        names = Names.of(words, self.prefix, LEFTOVERS)
        return replace(names, old_endings=FROM_TENSORFLOW, is_up_first=self.is_up_first)

    def has_pooler(self, architecture: str) -> bool:
        return architecture.endswith(self.pooled)


class BertConfig(EncoderConfig, kw_only=True):
    """BERT: learned positions from 0 on, two types of tokens."""

    type_vocab_size: Count = 2
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False

    prefix = "bert."
    pooled: ClassVar[tuple[str, ...]] = ("Model", "ForSequenceClassification")

    def embedding(self) -> EmbeddingSpec:
        embedding = super().embedding()
        return replace(embedding, first_position=self.unused_positions, num_token_types=self.type_vocab_size)

    def max_position(self) -> int:
        return self.max_position_embeddings - self.unused_positions

    @property
    def unused_positions(self) -> int:
        """Rows of the positions' table before the first token's."""
        return 0


class ErnieConfig(BertConfig, kw_only=True):
    """ERNIE: BERT with a table of tasks, whose first row is taken."""

    task_type_vocab_size: Count = 3
    use_task_id: bool = False

    prefix = "ernie."

    def embedding(self) -> EmbeddingSpec:
        return replace(super().embedding(), num_tasks=self.task_type_vocab_size * self.use_task_id)


class ElectraConfig(BertConfig, kw_only=True):
    """ELECTRA: BERT without a pooler, and embeddings that may be narrower than the stream."""

    embedding_size: Width = 128

    prefix = "electra."
    pooled = ()

    def embedding(self) -> EmbeddingSpec:
        size = self.embedding_size
        return replace(super().embedding(), size=size, is_projected=size != self.hidden_size)


class AlbertConfig(BertConfig, kw_only=True):
    """ALBERT: layers of a group have one set of weights; embeddings are narrower than the stream."""

    embedding_size: Width = 128
    num_hidden_groups: Layers = 1
    inner_group_num: Literal[1] = 1

    prefix = "albert."
    layer_names = (
        "attention.query attention.key attention.value attention.dense attention.LayerNorm"
        " ffn ffn_output full_layer_layer_norm"
    )
    other_names: ClassVar[Mapping[str, str]] = {
        "model.project_in": "encoder.embedding_hidden_mapping_in",
        "model.layers": "encoder.albert_layer_groups",
        "pooler.dense": "pooler",
    }

    def embedding(self) -> EmbeddingSpec:
        return replace(super().embedding(), size=self.embedding_size, is_projected=True)

    def layers(self, values: Values) -> tuple[LayerSpec, ...]:
        layers, groups = super().layers(values), self.num_hidden_groups
        if groups > len(layers):
            raise refuse("num_hidden_groups", groups, f"there are {len(layers)} layers")
        each = len(layers) / groups
        return tuple(replace(layer, weights=f"{int(i / each)}.albert_layers.0") for i, layer in enumerate(layers))


class RobertaConfig(BertConfig, kw_only=True):
    """RoBERTa, XLM-R, CamemBERT: positions begin after those of padding; classes with a head have no pooler."""

    pad_token_id: Annotated[int, Meta(ge=0, le=64)] = 1

    prefix = "roberta."
    pooled = ("Model",)

    @property
    def unused_positions(self) -> int:
        unused = self.pad_token_id + 1
        if self.max_position_embeddings <= unused:
            raise refuse("max_position_embeddings", self.max_position_embeddings, f"the first {unused} are for padding")
        return unused


class MPNetConfig(RobertaConfig, kw_only=True):
    """MPNet: no token types, and a bias of scores by distance, the same in all layers."""

    relative_attention_num_buckets: Annotated[int, Meta(ge=4, le=4096, multiple_of=4)] = 32

    prefix = "mpnet."
    layer_names = (
        "attention.attn.q attention.attn.k attention.attn.v attention.attn.o attention.LayerNorm"
        " intermediate.dense output.dense output.LayerNorm"
    )
    other_names: ClassVar[Mapping[str, str]] = {"model.relative_attention_bias": "encoder.relative_attention_bias"}

    def embedding(self) -> EmbeddingSpec:
        return replace(super().embedding(), num_token_types=0)

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        buckets = self.relative_attention_num_buckets
        if buckets != 32:
            raise refuse("relative_attention_num_buckets", buckets, "only 32 is supported")
        return replace(super().attention(rope, window), num_distance_buckets=buckets)


class DebertaV2Config(BertConfig, kw_only=True):
    """DeBERTa v2 and v3: vectors by distance, one for each of twice `position_buckets`, which queries and keys read."""

    relative_attention: Literal[True]
    share_att_key: Literal[True]
    norm_rel_ebd: Literal["layer_norm"]
    pos_att_type: list[str] | str
    max_relative_positions: int = -1
    position_buckets: Annotated[int, Meta(ge=-1, le=1 << 15)] = -1
    position_biased_input: bool = True
    embedding_size: None = None
    attention_head_size: None = None
    conv_kernel_size: Literal[0] = 0

    prefix = "deberta."
    pooled = ()
    layer_names = re.sub(r"self\.(\w+)", r"self.\1_proj", EncoderConfig.layer_names)
    other_names: ClassVar[Mapping[str, str]] = {
        "model.relative_attention_bias": "encoder.rel_embeddings",
        "model.distance_norm": "encoder.LayerNorm",
    }

    def embedding(self) -> EmbeddingSpec:
        return replace(super().embedding(), num_positions=self.max_position_embeddings * self.position_biased_input)

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        attention, kinds = super().attention(rope, window), self.pos_att_type
        if sorted(kinds.split("|") if isinstance(kinds, str) else kinds) != ["c2p", "p2c"]:
            raise refuse("pos_att_type", kinds, "must be p2c|c2p")
        longest = self.max_relative_positions if self.max_relative_positions > 0 else self.max_position_embeddings
        has_buckets, scale = self.position_buckets > 0, (3 * attention.head_dim) ** -0.5
        rows = 2 * (self.position_buckets if has_buckets else longest)
        distances = replace(attention, num_distance_buckets=rows, max_distance=longest * has_buckets)
        return replace(distances, scale=scale, has_distance_rows=True)


class DistilBertConfig(EncoderConfig, kw_only=True):
    """DistilBERT: BERT without token types and pooler, under names of its own."""

    hidden_size: Width = msgspec.field(default=768, name="dim")
    num_hidden_layers: Layers = msgspec.field(default=6, name="n_layers")
    num_attention_heads: Heads = msgspec.field(default=12, name="n_heads")
    intermediate_size: Width = msgspec.field(default=3072, name="hidden_dim")
    hidden_act: ActivationName = msgspec.field(default="gelu", name="activation")
    sinusoidal_pos_embds: bool = False  # the table is in the files either way

    prefix = "distilbert."
    layer_names = (
        "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm"
        " ffn.lin1 ffn.lin2 output_layer_norm"
    )
    other_names: ClassVar[Mapping[str, str]] = {"model.layers": "transformer.layer"}
