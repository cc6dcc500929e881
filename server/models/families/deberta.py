"""DeBERTa v2 and v3: scores have terms by distance and content, with a row for each bucket of distances."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from ..config_values import Epsilon, Heads, Layers, Positions, Vocab, Width, refuse
from ..layer import AttentionSpec, DistanceTermsSpec, RopeSpec
from ..spec import EmbeddingSpec
from .encoder import BertConfig, Count

Span = Annotated[int, Meta(ge=-1, le=1 << 15)]
KINDS = ["c2p", "p2c"]  # the query with a row for keys, the key with a row for queries


class DebertaV2Config(BertConfig, kw_only=True):
    """Keys and defaults of DebertaV2Config."""

    vocab_size: Vocab = 128_100
    hidden_size: Width = 1536
    num_hidden_layers: Layers = 24
    num_attention_heads: Heads = 24
    intermediate_size: Width = 6144
    max_position_embeddings: Positions = 512
    rms_norm_eps: Epsilon = field(default=1e-7, name="layer_norm_eps")
    type_vocab_size: Count = 0
    relative_attention: bool = False
    max_relative_positions: Span = -1
    position_buckets: Span = -1
    pos_att_type: list[str] | str | None = None
    share_att_key: bool = False
    norm_rel_ebd: str = "none"
    position_biased_input: bool = True
    embedding_size: Width | None = None
    attention_head_size: Width | None = None
    conv_kernel_size: Literal[0] = 0

    prefix = "deberta."
    pooled = ()
    layer_names = (
        "attention.self.query_proj attention.self.key_proj attention.self.value_proj attention.output.dense"
        " attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm"
    )
    other_names: ClassVar[dict[str, str]] = {
        "model.distances": "encoder.rel_embeddings",
        "model.distance_norm": "encoder.LayerNorm",
        **{f"self_attn.pos_{name}_proj": f"attention.self.pos_{name}_proj" for name in ("key", "query")},
    }

    def embedding(self) -> EmbeddingSpec:
        if self.embedding_size not in (None, self.hidden_size):
            raise refuse("embedding_size", self.embedding_size, f"not hidden_size, {self.hidden_size}")
        rows = self.max_position_embeddings * self.position_biased_input
        return replace(super().embedding(), num_positions=rows)

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        attention, types = super().attention(rope, window), self.pos_att_type or []
        kinds = sorted(types.split("|") if isinstance(types, str) else types)
        if self.attention_head_size not in (None, attention.head_dim):
            raise refuse("attention_head_size", self.attention_head_size, f"not that of a head, {attention.head_dim}")
        if self.relative_attention != bool(kinds) or kinds not in ([], KINDS):
            raise refuse("pos_att_type", self.pos_att_type, f"must be {KINDS} with relative_attention, else empty")
        return replace(attention, scale=(attention.head_dim * (1 + len(kinds))) ** -0.5, terms=self._terms())

    def _terms(self) -> DistanceTermsSpec | None:
        if not self.relative_attention:
            return None
        longest = self.max_relative_positions if self.max_relative_positions > 0 else self.max_position_embeddings
        has_buckets, is_normed = self.position_buckets > 0, "layer_norm" in self.norm_rel_ebd.split("|")
        span = self.position_buckets if has_buckets else longest
        return DistanceTermsSpec(span, longest * has_buckets, is_normed, self.share_att_key)
