"""`ModelSpec` to graph: the one description of a transformer layer, for every family.

embed, [projection], [positions, token types, norm], then for each layer
  norm, linear qkv, [norm of heads], [rope], attention, [gate], linear o, [norm], add
  [norm, linear q, cross attention, linear o, add]
  norm, linear gate_up, gated activation, linear down, [norm], add
then norm, [projection] and the output layer. `NormPlacement` moves norms, or puts both branches side by side; a
feed-forward network may be experts behind a router. Modules have the names of Hugging Face's Llama, translated by
`ModelSpec.names`; in a model that is planned and not served, names only tell tensors apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from .graph import Graph, LayerGroup
from .input_graph import input_ops, projection
from .latent_graph import latent_ops
from .layer import AttentionSpec, LatentAttentionSpec, LayerSpec
from .linear import Axis, Linear, Vector, WeightRows
from .module_rows import in_turns, side_by_side
from .network_graph import NetworkGraph
from .ops import (
    Add,
    Attention,
    AttentionGate,
    CrossAttention,
    Embed,
    FinishLogits,
    HeadNorm,
    LayerNorm,
    Norm,
    Op,
    Parallel,
    PlainHeadNorm,
    Rope,
    StreamNorm,
)
from .spec import ModelSpec
from .state_graph import StateGraph
from .stream_graph import StreamGraph
from .stream_ops import StreamFactor

EMBEDDING = "model.embed_tokens"
LM_HEAD = "lm_head"
LAYERS = "model.layers."
FINAL_NORM = "model.norm"
NORMS_OUTPUTS = ("before_and_after", "after")  # placements where the output of a branch is normed


@lru_cache(maxsize=64)  # many rooms derive sizes from the same graph
def decoder_graph(spec: ModelSpec) -> Graph:
    """Return the graph of a model, decoder or encoder."""
    build = _Builder(spec)
    embedding = build.part(EMBEDDING, build.vocab)
    layers = tuple(build.layer(layer, f"{LAYERS}{layer.weights or i}.") for i, layer in enumerate(spec.layers))
    alike: dict[LayerSpec, list[int]] = {}
    for i, layer in enumerate(spec.layers):
        alike.setdefault(layer, []).append(i)
    return Graph(
        embed=Embed(embedding, build.embedded, spec.stack.input.scale, spec.stack.input.is_shared),
        prelude=(*build.streams.prelude(), *input_ops(spec, build.part, build.norm)),
        layers=layers,
        tail=(
            *build.streams.tail(),
            *build.final_norm(),
            *projection(build.part, "project_out", build.hidden, Axis("hidden", spec.state_size)),
            *build.heads(embedding),
        ),
        is_tied=spec.is_tied or not spec.vocab_size,
        groups=tuple(
            LayerGroup(tuple(indices), layers[indices[0]], layer.weights is not None)
            for layer, indices in alike.items()
        ),
    )


def graphs(spec: ModelSpec) -> tuple[Graph, ...]:
    """Return the graph of a model, and that of the encoder beside it if it has one."""
    return (decoder_graph(spec),) if spec.source is None else (decoder_graph(spec), decoder_graph(spec.source))


class _Builder:
    def __init__(self, spec: ModelSpec) -> None:
        self._spec, self._norm = spec, spec.stack.norm
        self.hidden = Axis("hidden", spec.hidden_size)
        self.embedded = Axis("hidden", spec.stack.input.size)
        self.vocab = Axis("vocab", spec.vocab_size)
        self._states = StateGraph(spec.names, self.part, self.hidden, self._norm.eps)
        self._networks = NetworkGraph(self.part, self._parts, self._rms, self._vector, self.hidden)
        self.streams = StreamGraph(spec, self._networks, self.part, self._rms, self._vector)

    def part(self, module: str, outputs: Axis) -> WeightRows:
        """Return all rows of `module`, under the checkpoint's name of it."""
        names, is_in_layers = self._spec.names, module.startswith(LAYERS)
        factor = names.factor(module) if is_in_layers else 1.0
        is_transposed = names.is_transposed and is_in_layers
        return WeightRows(names.module(module), outputs, is_transposed=is_transposed, factor=factor)

    def _vector(self, module: str, axis: Axis, tensor: str = "weight") -> Vector:
        name = self._spec.names.module(f"{module}.{tensor}".rstrip("."))
        return Vector(name, axis.size, axis if axis.is_split else None)

    def final_norm(self) -> tuple[Op, ...]:
        """Return the norm of the last layer's stream, unless each layer ends with one or there is none."""
        is_left_out = self._spec.layers[-1].norms == "stream" or not self._spec.stack.ends_normed
        return () if is_left_out else (self.norm("final norm", FINAL_NORM),)

    def heads(self, embedding: WeightRows) -> tuple[Op, ...]:
        """Return the output layer or the pooler, which reads the last stream."""
        head = self._spec.head
        if self._spec.has_pooler:
            return (Linear("pooler", (self.part("pooler.dense", self.hidden),), self.hidden, has_bias=True),)
        if head is None:
            return ()
        part = replace(self.part(LM_HEAD, self.vocab), tensor=embedding.weight if head.is_tied else None)
        linear = Linear(LM_HEAD, (part,), self.embedded, head.has_bias)
        is_plain = head.scale == 1.0 and not head.cap
        return (linear,) if is_plain else (linear, FinishLogits(head.scale, head.cap))

    def norm(self, name: str, module: str, size: Axis | None = None) -> Norm | LayerNorm:
        """Return the norm of the stream whose weights are those of `module`; `size` is the stream's by default."""
        kind, size = self._norm.kind, size or self.hidden
        if kind == "rms":
            return self._rms(name, module)
        weight = None if kind == "layer_no_weight" else self._vector(module, size)
        bias = self._vector(module, size, "bias") if kind == "layer" else None
        return LayerNorm(name, weight, bias, self._norm.eps, self._norm.offset)

    def _rms(self, name: str, module: str) -> Norm:
        return Norm(name, self._vector(module, self.hidden), self._norm.eps, self._norm.offset)

    def layer(self, layer: LayerSpec, at: str) -> tuple[Op, ...]:
        """Return the ops of the layer whose modules begin with `at`."""
        # "post_attention" is the norm after attention where there is one, otherwise the one before the feed-forward.
        after_attention, before_ffn = f"{at}post_attention_layernorm", f"{at}pre_feedforward_layernorm"
        if layer.norms not in NORMS_OUTPUTS:
            before_ffn = after_attention
        attention_norm = self.norm("attention norm", f"{at}input_layernorm")
        ffn_norm = self.norm("ffn norm", before_ffn)
        attention = self._mixers(layer, at)
        ffn = self._networks.branch(layer.feed_forward, f"{at}mlp.")
        if not attention or not ffn:
            return self._one_branch(layer, attention_norm if attention else ffn_norm, attention or ffn)
        if layer.streams is not None:
            return self.streams.layer(layer, at, attention, ffn)
        if layer.norms == "parallel":
            return attention_norm, Parallel((attention, ffn)), Add()
        if layer.norms == "parallel_each":
            return Parallel(((attention_norm, *attention), (ffn_norm, *ffn))), Add()
        return (
            *((attention_norm,) if layer.norms in ("before", "before_and_after") else ()),
            *attention,
            *self._add(layer, "attention", after_attention),
            *self._cross(layer, at),
            *((ffn_norm,) if layer.norms in ("before", "before_and_after", "before_ffn") else ()),
            *ffn,
            *self._add(layer, "ffn", f"{at}post_feedforward_layernorm"),
            *self.streams.input_branch(layer, at),
            *((StreamFactor(Vector(f"{at}layer_scalar", 1)),) if layer.has_scalar else ()),
        )

    def _cross(self, layer: LayerSpec, at: str) -> tuple[Op, ...]:
        """Return the branch that attends to the encoder, if the layer has one."""
        spec, norm = layer.cross, f"{at}cross_attn_layernorm"
        if spec is None:
            return ()
        query = Axis("query", spec.num_heads, spec.head_dim, heads=spec.heads)
        kv = Axis("kv", spec.num_kv_heads, spec.head_dim, heads=spec.heads)
        keys, values = (self.part(f"{at}cross_attn.{name}_proj", kv) for name in "kv")
        parts = replace(keys, lacks_bias=spec.lacks_k_bias), values
        scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale
        return (
            *((self.norm("cross attention norm", norm),) if layer.norms == "before" else ()),
            Linear("cross q", (self.part(f"{at}cross_attn.q_proj", query),), self.hidden, spec.has_qkv_bias),
            CrossAttention(scale, Linear("cross kv", parts, self.hidden, spec.has_qkv_bias)),
            Linear("cross o", (self.part(f"{at}cross_attn.o_proj", self.hidden),), query, spec.has_o_bias),
            *self._add(layer, "cross attention", norm),
        )

    def _one_branch(self, layer: LayerSpec, norm: Norm | LayerNorm, branch: tuple[Op, ...]) -> tuple[Op, ...]:
        assert layer.norms == "before", "a layer of one branch reads the normed stream"
        return norm, *branch, Add(scale=layer.residual_scale)

    def _mixers(self, layer: LayerSpec, at: str) -> tuple[Op, ...]:
        """Return the ops of a layer's mixer, or of two side by side."""
        mixer = layer.mixer
        if mixer is None:
            return ()
        if not isinstance(mixer, AttentionSpec):
            return self._states.mixer(mixer, at)
        attention = self._attention(mixer, f"{at}self_attn.")
        return attention if layer.beside is None else (Parallel((attention, self._states.mixer(layer.beside, at))),)

    def _add(self, layer: LayerSpec, branch: str, norm: str) -> tuple[Op, ...]:
        name = f"{branch} output norm"
        if layer.norms == "stream":
            return Add(), StreamNorm(self.norm(name, norm))
        return (Add(self._rms(name, norm) if layer.norms in NORMS_OUTPUTS else None, layer.residual_scale),)

    def _attention(self, spec: AttentionSpec, at: str) -> tuple[Op, ...]:
        if isinstance(spec, LatentAttentionSpec):
            return latent_ops(spec, at, self.hidden, self.part)
        query = Axis("query", spec.num_heads, spec.head_dim, heads=spec.heads)
        kv = Axis("kv", spec.num_kv_heads, spec.head_dim, heads=spec.heads)
        ops: list[Op] = [Linear("qkv", self._qkv(spec, at, query, kv), self.hidden, spec.has_qkv_bias)]
        if spec.qk_norm == "unweighted":
            ops.append(PlainHeadNorm(self._norm.eps))
        elif spec.qk_norm != "none":
            ops.append(self._head_norm(spec, at, query, kv))
        if spec.rope is not None:
            ops.insert(1 if spec.norms_rotated else len(ops), Rope(spec.rope))
        scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale
        sinks = (
            self._vector(at[:-1], Axis("query", spec.num_heads, heads=spec.heads), "sinks") if spec.has_sinks else None
        )
        is_causal = not self._spec.is_encoder
        ops.append(Attention(spec.window, scale, is_causal, spec.is_chunked, spec.score_cap, sinks, spec.temperature))
        if spec.has_gate:
            ops.append(AttentionGate())
        return (*ops, Linear("o", (self.part(f"{at}o_proj", self.hidden),), query, spec.has_o_bias))

    def _qkv(self, spec: AttentionSpec, at: str, query: Axis, kv: Axis) -> tuple[WeightRows, ...]:
        """Return the projections of queries, keys and values that a layer has."""
        if spec.kv_source is not None:
            return self._parts(at, {"q_proj": query})
        if spec.is_value_key:
            parts = self._parts(at, {"q_proj": query, "k_proj": kv})
            return (*parts, parts[-1])
        q, k, v = self._parts(at, {"q_proj": query, "k_proj": kv, "v_proj": kv})
        parts = q, replace(k, lacks_bias=spec.lacks_k_bias), v
        if not spec.has_gate:
            return parts
        queries, gate = in_turns([self.part(f"{at}{name}", query) for name in ("q_proj", "gate_proj")])
        if queries.module == gate.module:  # the rows of each head are its query's and its gate's
            return (queries, *parts[1:], gate)
        return (*parts, self.part(f"{at}gate_proj", query))

    def _head_norm(self, spec: AttentionSpec, at: str, query: Axis, kv: Axis) -> HeadNorm:
        is_wide, is_own, has_bias = (spec.qk_norm == kind for kind in ("all_heads", "each_head", "head_layer"))
        one = Axis("rows", spec.head_dim)
        axes = (query, kv) if is_wide or is_own else (one, one)
        q, k = (
            replace(self._vector(f"{at}{name}_norm", axis), rows=axis.units * is_own)
            for name, axis in zip("qk", axes, strict=True)
        )
        k = k if spec.kv_source is None else q  # there are no keys to norm
        biases = tuple(self._vector(f"{at}{name}_norm", one, "bias") for name in "qk" if has_bias)
        is_centered = is_own or has_bias
        return HeadNorm(q, k, self._norm.eps, self._norm.offset, is_wide, is_centered, spec.norms_rotated, biases)

    def _parts(self, at: str, axes: Mapping[str, Axis]) -> tuple[WeightRows, ...]:
        """Return modules side by side."""
        return side_by_side([self.part(f"{at}{name}", axis) for name, axis in axes.items()], self._spec.names)
