"""`ModelSpec` to graph: the one description of a transformer layer, for every family.

embed, then for each layer
  norm, linear qkv, [norm of heads], [rope], attention, linear o, [norm], add
  norm, linear gate_up, gated activation, linear down, [norm], add
then norm and the output layer. Tensors are named as Hugging Face's Llama, Mistral, Qwen and Gemma name them.
"""

from __future__ import annotations

from functools import lru_cache

from server.models.graph import (
    Activate,
    Add,
    Attention,
    Axis,
    Embed,
    Experts,
    Gated,
    Graph,
    HeadNorm,
    Linear,
    Norm,
    Op,
    Part,
    Rope,
    Vector,
)
from server.models.spec import ModelSpec

EMBEDDING = "model.embed_tokens"
LM_HEAD = "lm_head"
FINAL_NORM = "model.norm"


@lru_cache(maxsize=64)  # every room that needs the graph asks for it
def decoder_graph(spec: ModelSpec) -> Graph:
    """The graph of a model."""
    build = _Builder(spec)
    embedding = Part(EMBEDDING, build.vocab)
    head = Part(LM_HEAD, build.vocab, tensor=embedding.weight if spec.is_tied else None)
    return Graph(
        embed=Embed(embedding, build.hidden, spec.embedding_scale),
        layers=tuple(build.layer(i) for i in range(spec.num_layers)),
        final_norm=build.norm("final norm", FINAL_NORM),
        head=Linear(LM_HEAD, (head,), build.hidden),
        is_tied=spec.is_tied,
    )


class _Builder:
    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self.hidden = Axis("hidden", spec.hidden_size)
        self.vocab = Axis("vocab", spec.vocab_size)
        self._query = Axis("query", spec.num_heads, spec.head_dim)
        self._kv = Axis("kv", spec.num_kv_heads, spec.head_dim)
        self._ffn = Axis("ffn", spec.intermediate_size)

    def norm(self, name: str, module: str) -> Norm:
        spec = self._spec
        return Norm(name, Vector(f"{module}.weight", spec.hidden_size), spec.rms_norm_eps, spec.norm_offset)

    def layer(self, i: int) -> tuple[Op, ...]:
        at = f"model.layers.{i}."
        # "post_attention" is the norm after attention where there is one, otherwise the one before the feed-forward.
        after_attention, before_ffn = f"{at}post_attention_layernorm", f"{at}pre_feedforward_layernorm"
        if not self._spec.has_post_norms:
            before_ffn = after_attention
        return (
            self.norm("attention norm", f"{at}input_layernorm"),
            *self._attention(i, f"{at}self_attn."),
            self._add("attention", after_attention),
            self.norm("ffn norm", before_ffn),
            *self._feed_forward(f"{at}mlp."),
            self._add("ffn", f"{at}post_feedforward_layernorm"),
        )

    def _add(self, branch: str, norm: str) -> Add:
        return Add(self.norm(f"{branch} output norm", norm) if self._spec.has_post_norms else None)

    def _attention(self, i: int, at: str) -> tuple[Op, ...]:
        spec = self._spec
        axes = {"q": self._query, "k": self._kv, "v": self._kv}
        parts = tuple(Part(f"{at}{name}_proj", axis) for name, axis in axes.items())
        ops: list[Op] = [Linear("qkv", parts, self.hidden, spec.has_qkv_bias)]
        if spec.has_qk_norm:
            query, key = (Vector(f"{at}{name}_norm.weight", spec.head_dim) for name in "qk")
            ops.append(HeadNorm(query, key, spec.rms_norm_eps, spec.norm_offset))
        rope = spec.layer_rope(i)
        if rope is not None:
            ops.append(Rope(rope))
        scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
        ops.append(Attention(spec.window(i), scale))
        return (*ops, Linear("o", (Part(f"{at}o_proj", self.hidden),), self._query, spec.has_o_bias))

    def _feed_forward(self, at: str) -> tuple[Op, ...]:
        spec = self._spec
        if not spec.num_experts:
            return self._network(at)
        router = Linear("router", (Part(f"{at}gate", Axis("experts", spec.num_experts)),), self.hidden)
        networks = tuple(self._network(f"{at}experts.{i}.") for i in range(spec.num_experts))
        return (Experts(router, networks, spec.experts_per_token),)

    def _network(self, at: str) -> tuple[Linear | Gated | Activate, ...]:
        spec = self._spec
        down = Linear("down", (Part(f"{at}down_proj", self.hidden),), self._ffn)
        if not spec.is_gated:
            return Linear("up", (Part(f"{at}up_proj", self._ffn),), self.hidden), Activate(spec.activation), down
        gate_up = Part(f"{at}gate_proj", self._ffn), Part(f"{at}up_proj", self._ffn)
        return Linear("gate_up", gate_up, self.hidden), Gated(spec.activation), down
