"""`ModelSpec` to graph: the one description of a transformer layer, for every family.

embed, [positions, token types, norm], then for each layer
  norm, linear qkv, [norm of heads], [rope], attention, [gate], linear o, [norm], add
  norm, linear gate_up, gated activation, linear down, [norm], add
then norm and the output layer. Options leave norms out, put them behind the addition, or have both branches read one
value; a feed-forward network may be experts behind a router. Tensors are named as Hugging Face's Llama, Mistral, Qwen
and Gemma name them; in a model that is planned and not served, names tell tensors apart and no more.
"""

from __future__ import annotations

from functools import lru_cache

from server.models.graph import Graph, LayerGroup
from server.models.ops import (
    Activate,
    Add,
    AddRows,
    Attention,
    AttentionGate,
    Axis,
    Embed,
    Experts,
    Gated,
    HeadNorm,
    LayerNorm,
    Linear,
    Network,
    Norm,
    Op,
    Parallel,
    Part,
    Rope,
    StreamNorm,
    Vector,
)
from server.models.spec import ModelSpec

EMBEDDING = "model.embed_tokens"
LM_HEAD = "lm_head"
FINAL_NORM = "model.norm"


@lru_cache(maxsize=64)  # every room that needs the graph asks for it
def decoder_graph(spec: ModelSpec) -> Graph:
    """The graph of a model, decoder or encoder."""
    build = _Builder(spec)
    embedding = Part(EMBEDDING, build.vocab)
    layers = tuple(build.layer(i) for i in range(spec.num_layers))
    alike: dict[object, list[int]] = {}
    for i in range(spec.num_layers):
        alike.setdefault((spec.window(i), spec.layer_rope(i), spec.has_experts(i)), []).append(i)
    return Graph(
        embed=Embed(embedding, build.hidden, spec.embedding_scale),
        prelude=tuple(build.prelude()),
        layers=layers,
        tail=(*build.final_norm(), *build.heads(embedding)),
        is_tied=spec.is_tied,
        groups=tuple(LayerGroup(tuple(indices), layers[indices[0]]) for indices in alike.values()),
    )


class _Builder:
    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self.hidden = Axis("hidden", spec.hidden_size)
        self.vocab = Axis("vocab", spec.vocab_size)
        self._query = Axis("query", spec.num_heads, spec.head_dim)
        self._kv = Axis("kv", spec.num_kv_heads, spec.head_dim)

    def prelude(self) -> list[Op]:
        """What is done to the embeddings of tokens."""
        tables = {"positions": self._spec.num_positions, "token_types": self._spec.num_token_types}
        ops: list[Op] = [
            AddRows(Part(f"model.embed_{name}", Axis("rows", rows)), self.hidden)
            for name, rows in tables.items()
            if rows
        ]
        if self._spec.has_embedding_norm:
            ops.append(StreamNorm(self.norm("embedding norm", "model.embed_norm")))
        return ops

    def final_norm(self) -> tuple[Op, ...]:
        """The norm of the last layer's stream, unless each layer ends with one."""
        return () if self._spec.has_stream_norms else (self.norm("final norm", FINAL_NORM),)

    def heads(self, embedding: Part) -> tuple[Op, ...]:
        """What reads the stream in the end: the output layer of a decoder, the pooler of an encoder that has one."""
        spec = self._spec
        if spec.is_encoder:
            pooler = Linear("pooler", (Part("pooler.dense", self.hidden),), self.hidden, has_bias=True)
            return (pooler,) if spec.has_pooler else ()
        head = Part(LM_HEAD, self.vocab, tensor=embedding.weight if spec.is_tied else None)
        return (Linear(LM_HEAD, (head,), self.hidden, spec.has_head_bias),)

    def norm(self, name: str, module: str) -> Norm | LayerNorm:
        spec = self._spec
        if spec.norm == "rms":
            return self._rms(name, module)
        bias = Vector(f"{module}.bias", spec.hidden_size) if spec.norm == "layer" else None
        return LayerNorm(name, Vector(f"{module}.weight", spec.hidden_size), bias, spec.rms_norm_eps)

    def _rms(self, name: str, module: str) -> Norm:
        spec = self._spec
        return Norm(name, Vector(f"{module}.weight", spec.hidden_size), spec.rms_norm_eps, spec.norm_offset)

    def layer(self, i: int) -> tuple[Op, ...]:
        spec, at = self._spec, f"model.layers.{i}."
        # "post_attention" is the norm after attention where there is one, otherwise the one before the feed-forward.
        after_attention, before_ffn = f"{at}post_attention_layernorm", f"{at}pre_feedforward_layernorm"
        if not spec.has_post_norms:
            before_ffn = after_attention
        norms = (self.norm("attention norm", f"{at}input_layernorm"), self.norm("ffn norm", before_ffn))
        attention, ffn = self._attention(i, f"{at}self_attn."), self._feed_forward(i, f"{at}mlp.")
        if spec.parallel_norms == 1:
            return norms[0], Parallel((attention, ffn)), Add()
        if spec.parallel_norms:
            return Parallel(((norms[0], *attention), (norms[1], *ffn))), Add()
        before = ((norms[0],), (norms[1],)) if spec.has_pre_norms else ((), ())
        return (
            *before[0],
            *attention,
            *self._add("attention", after_attention),
            *before[1],
            *ffn,
            *self._add("ffn", f"{at}post_feedforward_layernorm"),
        )

    def _add(self, branch: str, norm: str) -> tuple[Op, ...]:
        name = f"{branch} output norm"
        if self._spec.has_stream_norms:
            return Add(), StreamNorm(self.norm(name, norm))
        return (Add(self._rms(name, norm) if self._spec.has_post_norms else None),)

    def _attention(self, i: int, at: str) -> tuple[Op, ...]:
        spec = self._spec
        axes = {"q": self._query, "k": self._kv, "v": self._kv}
        parts = tuple(Part(f"{at}{name}_proj", axis) for name, axis in axes.items())
        ops: list[Op] = [Linear("qkv", parts, self.hidden, spec.has_qkv_bias)]
        if spec.has_qk_norm:
            sizes = {"q": self._query.size, "k": self._kv.size} if spec.has_wide_qk_norm else {}
            query, key = (Vector(f"{at}{name}_norm.weight", sizes.get(name, spec.head_dim)) for name in "qk")
            ops.append(HeadNorm(query, key, spec.rms_norm_eps, spec.norm_offset))
        rope = spec.layer_rope(i)
        if rope is not None:
            ops.append(Rope(rope))
        scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
        ops.append(Attention(spec.window(i), scale, is_causal=not spec.is_encoder))
        if spec.has_attention_gate:
            ops.append(AttentionGate(Linear("attention gate", (Part(f"{at}gate_proj", self._query),), self.hidden)))
        return (*ops, Linear("o", (Part(f"{at}o_proj", self.hidden),), self._query, spec.has_o_bias))

    def _feed_forward(self, i: int, at: str) -> tuple[Op, ...]:
        spec = self._spec
        if not spec.has_experts(i):
            return self._network(
                at, (spec.dense_intermediate_size if spec.num_experts else 0) or spec.intermediate_size
            )
        part = Part(f"{at}gate", Axis("experts", spec.num_experts))
        return (
            Experts(
                router=Linear("router", (part,), self.hidden, spec.has_router_bias),
                first=self._network(f"{at}experts.0.", spec.intermediate_size),
                count=spec.num_experts,
                per_token=spec.experts_per_token,
                shared=self._network(f"{at}shared_expert.", size) if (size := spec.shared_intermediate_size) else (),
            ),
        )

    def _network(self, at: str, size: int) -> Network:
        spec, ffn = self._spec, Axis("ffn", size)
        down = Linear("down", (Part(f"{at}down_proj", self.hidden),), ffn, spec.has_ffn_bias)
        if not spec.is_gated:
            up = Linear("up", (Part(f"{at}up_proj", ffn),), self.hidden, spec.has_ffn_bias)
            return up, Activate(spec.activation), down
        gate_up = Part(f"{at}gate_proj", ffn), Part(f"{at}up_proj", ffn)
        return Linear("gate_up", gate_up, self.hidden, spec.has_ffn_bias), Gated(spec.activation), down
