"""`ModelSpec` to graph: the one description of a transformer layer, for every family.

embed, [projection], [positions, token types, norm], then for each layer
  norm, linear qkv, [norm of heads], [rope], attention, [gate], linear o, [norm], add
  norm, linear gate_up, gated activation, linear down, [norm], add
then norm, [projection] and the output layer. Options leave norms out, put them behind the addition, or have both
branches read one value; a feed-forward network may be experts behind a router. Modules are named as Hugging Face's
Llama, Mistral, Qwen and Gemma name them, and then as `ModelSpec.names` has it; in a model that is planned and not
served, names tell tensors apart and no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from neuronserve.server.models.graph import Graph, LayerGroup
from neuronserve.server.models.ops import (
    Activate,
    Add,
    AddRows,
    Attention,
    AttentionGate,
    Axis,
    Embed,
    Experts,
    FinishLogits,
    Gated,
    HeadNorm,
    LayerNorm,
    Linear,
    Network,
    Norm,
    Op,
    Parallel,
    Part,
    PlainHeadNorm,
    Replace,
    Rope,
    StreamNorm,
    Vector,
)
from neuronserve.server.models.spec import ModelSpec

EMBEDDING = "model.embed_tokens"
LM_HEAD = "lm_head"
LAYERS = "model.layers."
FINAL_NORM = "model.norm"


@lru_cache(maxsize=64)  # every room that needs the graph asks for it
def decoder_graph(spec: ModelSpec) -> Graph:
    """The graph of a model, decoder or encoder."""
    build = _Builder(spec)
    embedding = build.part(EMBEDDING, build.vocab)
    layers = tuple(build.layer(i) for i in range(spec.num_layers))
    alike: dict[object, list[int]] = {}
    for i in range(spec.num_layers):
        has_norm = spec.has_first_norm or i > 0
        alike.setdefault((spec.window(i), spec.layer_rope(i), spec.has_experts(i), has_norm), []).append(i)
    return Graph(
        embed=Embed(embedding, build.embedded, spec.embedding_scale),
        prelude=tuple(build.prelude()),
        layers=layers,
        tail=(
            *build.final_norm(),
            *build.projection("project_out", build.hidden, build.embedded),
            *build.heads(embedding),
        ),
        is_tied=spec.is_tied,
        groups=tuple(LayerGroup(tuple(indices), layers[indices[0]]) for indices in alike.values()),
    )


class _Builder:
    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self.hidden = Axis("hidden", spec.hidden_size)
        self.embedded = Axis("hidden", spec.state_size)
        self.vocab = Axis("vocab", spec.vocab_size)
        self._query = Axis("query", spec.num_heads, spec.head_dim)
        self._kv = Axis("kv", spec.num_kv_heads, spec.head_dim)

    def part(self, module: str, outputs: Axis) -> Part:
        """All rows of `module`, under the checkpoint's name of it."""
        names = self._spec.names
        return Part(names.module(module), outputs, is_transposed=names.is_transposed and module.startswith(LAYERS))

    def _vector(self, module: str, axis: Axis, tensor: str = "weight") -> Vector:
        name = f"{self._spec.names.module(module)}.{tensor}"
        return Vector(name, axis.size, axis if axis.is_split else None)

    def prelude(self) -> list[Op]:
        """What is done to the embeddings of tokens."""
        spec, ops = self._spec, list(self.projection("project_in", self.embedded, self.hidden))
        if spec.num_positions:
            table = self.part("model.embed_positions", Axis("rows", spec.num_positions))
            ops.append(AddRows(table, self.hidden, "positions", spec.first_position))
        if spec.num_token_types:
            table = self.part("model.embed_token_types", Axis("rows", spec.num_token_types))
            ops.append(AddRows(table, self.hidden, "token_types"))
        if spec.has_embedding_norm:
            ops.append(StreamNorm(self.norm("embedding norm", "model.embed_norm")))
        return ops

    def projection(self, name: str, inputs: Axis, outputs: Axis) -> tuple[Op, ...]:
        """The stream from the size of embeddings to the hidden size, or back, where they differ."""
        if inputs == outputs:
            return ()
        return Linear(name, (self.part(f"model.{name}", outputs),), inputs), Replace()

    def final_norm(self) -> tuple[Op, ...]:
        """The norm of the last layer's stream, unless each layer ends with one."""
        return () if self._spec.has_stream_norms else (self.norm("final norm", FINAL_NORM),)

    def heads(self, embedding: Part) -> tuple[Op, ...]:
        """What reads the stream in the end: the output layer of a decoder, the pooler of an encoder that has one."""
        spec = self._spec
        if spec.is_encoder:
            pooler = Linear("pooler", (self.part("pooler.dense", self.hidden),), self.hidden, has_bias=True)
            return (pooler,) if spec.has_pooler else ()
        if not spec.has_output_layer:
            return ()
        head = replace(self.part(LM_HEAD, self.vocab), tensor=embedding.weight if spec.is_tied else None)
        linear = Linear(LM_HEAD, (head,), self.embedded, spec.has_head_bias)
        is_plain = spec.logit_scale == 1.0 and not spec.logit_cap
        return (linear,) if is_plain else (linear, FinishLogits(spec.logit_scale, spec.logit_cap))

    def norm(self, name: str, module: str) -> Norm | LayerNorm:
        spec = self._spec
        if spec.norm == "rms":
            return self._rms(name, module)
        bias = self._vector(module, self.hidden, "bias") if spec.norm == "layer" else None
        return LayerNorm(name, self._vector(module, self.hidden), bias, spec.rms_norm_eps)

    def _rms(self, name: str, module: str) -> Norm:
        spec = self._spec
        return Norm(name, self._vector(module, self.hidden), spec.rms_norm_eps, spec.norm_offset)

    def layer(self, i: int) -> tuple[Op, ...]:
        spec, at = self._spec, f"{LAYERS}{i}."
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
        before = norms[: 2 if spec.has_pre_norms else 0]
        return (
            *before[: int(spec.has_first_norm or i > 0)],
            *attention,
            *self._add("attention", after_attention),
            *before[1:],
            *ffn,
            *self._add("ffn", f"{at}post_feedforward_layernorm"),
        )

    def _add(self, branch: str, norm: str) -> tuple[Op, ...]:
        name = f"{branch} output norm"
        if self._spec.has_stream_norms:
            return Add(), StreamNorm(self.norm(name, norm))
        return (Add(self._rms(name, norm) if self._spec.has_post_norms else None, self._spec.residual_scale),)

    def _attention(self, i: int, at: str) -> tuple[Op, ...]:
        spec = self._spec
        parts = self._parts(at, {"q_proj": self._query, "k_proj": self._kv, "v_proj": self._kv})
        ops: list[Op] = [Linear("qkv", parts, self.hidden, spec.has_qkv_bias)]
        if spec.has_qk_norm:
            ops.append(self._head_norm(at))
        rope = spec.layer_rope(i)
        if rope is not None:
            # Turning pairs changes no head's length (Llama 4's ropes have no factor then): the norm may come first.
            ops += [*([PlainHeadNorm(spec.rms_norm_eps)] if spec.has_plain_qk_norm else []), Rope(rope)]
        scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
        sinks = self._vector(at[:-1], Axis("query", spec.num_heads), "sinks") if spec.has_sinks else None
        temperature = spec.layer_temperature(i)
        ops.append(
            Attention(spec.window(i), scale, not spec.is_encoder, spec.is_chunked, spec.score_cap, sinks, temperature)
        )
        if spec.has_attention_gate:
            ops.append(
                AttentionGate(Linear("attention gate", (self.part(f"{at}gate_proj", self._query),), self.hidden))
            )
        return (*ops, Linear("o", (self.part(f"{at}o_proj", self.hidden),), self._query, spec.has_o_bias))

    def _head_norm(self, at: str) -> HeadNorm:
        spec, one = self._spec, Axis("rows", self._spec.head_dim)
        is_wide, is_centered = spec.has_wide_qk_norm, spec.has_layer_qk_norm
        axes = (self._query, self._kv) if is_wide or is_centered else (one, one)
        query, key = (
            replace(self._vector(f"{at}{name}_norm", axis), is_folded=is_centered)
            for name, axis in zip("qk", axes, strict=True)
        )
        return HeadNorm(query, key, spec.rms_norm_eps, spec.norm_offset, is_wide, is_centered)

    def _parts(self, at: str, axes: Mapping[str, Axis]) -> tuple[Part, ...]:
        """Modules side by side; those that the checkpoint's names make one are its rows, one after the other."""
        parts: list[Part] = []
        for name, axis in axes.items():
            part = self.part(f"{at}{name}", axis)
            alike = [before.outputs for before in parts if before.module == part.module]
            parts.append(replace(part, first_row=sum(outputs.size for outputs in alike)))
        return self._in_turns(parts) if self._spec.names.take_turns else tuple(parts)

    def _in_turns(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """Parts of one module whose units alternate: the first of each, then the second of each, and so on."""
        sizes = [part.outputs.unit_size for part in parts]
        return tuple(replace(part, first_row=sum(sizes[:i]), unit_stride=sum(sizes)) for i, part in enumerate(parts))

    def _feed_forward(self, i: int, at: str) -> tuple[Op, ...]:
        spec = self._spec
        if not spec.has_experts(i):
            return self._network(
                at, (spec.dense_intermediate_size if spec.num_experts else 0) or spec.intermediate_size
            )
        parts: tuple[Part, ...] = (self.part(f"{at}gate", Axis("experts", spec.num_experts)),)
        if spec.has_shared_gate:
            parts = (*parts, self.part(f"{at}shared_expert_gate", Axis("experts", 1)))
        return (
            Experts(
                router=Linear("router", parts, self.hidden, spec.has_router_bias),
                first=self._network(f"{at}experts.0.", spec.intermediate_size, is_expert=True),
                count=spec.num_experts,
                per_token=spec.experts_per_token,
                shared=self._network(f"{at}shared_expert.", size) if (size := spec.shared_intermediate_size) else (),
                routing=spec.routing,
                weighs_inputs=spec.weighs_expert_inputs,
                has_shared_gate=spec.has_shared_gate,
            ),
        )

    def _network(self, at: str, size: int, is_expert: bool = False) -> Network:
        spec, ffn = self._spec, Axis("ffn", size, is_of_expert=is_expert)
        down = Linear("down", (self.part(f"{at}down_proj", self.hidden),), ffn, spec.has_ffn_bias)
        if not spec.is_gated:
            up = Linear("up", (self.part(f"{at}up_proj", ffn),), self.hidden, spec.has_ffn_bias)
            return up, Activate(spec.activation), down
        gate_up = self._parts(at, {"gate_proj": ffn, "up_proj": ffn})
        return Linear("gate_up", gate_up, self.hidden, spec.has_ffn_bias), Gated(spec.activation), down
