"""Ops before the first layer: rows that are added to the embeddings, norms, projections, and biases by distance."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .layer import DistanceTermsSpec
from .linear import Axis, Linear, Vector, WeightRows
from .ops import Activate, AddRows, DistanceBuckets, DistanceTerms, LayerNorm, Norm, Op, Replace, StreamNorm
from .spec import ModelSpec

FRAMES = 3  # that a convolution over sound reads

MakePart = Callable[[str, Axis], WeightRows]


def input_ops(spec: ModelSpec, part: MakePart, norm: Callable[[str, str, Axis], Norm | LayerNorm]) -> Iterator[Op]:
    """Yield the ops that change the embeddings of tokens.

    `part` makes all rows of a module, `norm` the norm with the weights of a module.
    """
    table, embedded, hidden = spec.stack.input, Axis("hidden", spec.stack.input.size), Axis("hidden", spec.hidden_size)
    if not table.is_projected:
        yield from projection(part, "project_in", embedded, hidden)
    if table.num_channels:
        yield from _convolutions(part, table.num_channels, hidden)
    added = embedded if table.is_projected else hidden
    for name, num_rows, by, first in table.added:
        if num_rows:
            yield AddRows(part(f"model.embed_{name}", Axis("rows", num_rows)), added, by, first)
    if table.has_norm:
        yield StreamNorm(norm("embedding norm", "model.embed_norm", added))
    if table.is_projected:
        yield from (Linear("project_in", (part("model.project_in", hidden),), embedded, has_bias=True), Replace())
    yield from _distances(spec)


def projection(part: MakePart, name: str, inputs: Axis, outputs: Axis) -> tuple[Op, ...]:
    """Return the projection from the size of embeddings to the hidden size, or back, where they differ."""
    if inputs == outputs:
        return ()
    return Linear(name, (part(f"model.{name}", outputs),), inputs), Replace()


def _convolutions(part: MakePart, num_channels: int, hidden: Axis) -> Iterator[Op]:
    """Yield the two layers over three neighbouring frames each, of which a channel's values are neighbours."""
    for name, size in (("conv1", num_channels), ("conv2", hidden.size)):
        yield Linear(name, (part(f"model.{name}", hidden),), Axis("rows", FRAMES * size), has_bias=True)
        yield Activate("gelu")


def _distances(spec: ModelSpec) -> Iterator[Op]:
    """Yield biases and terms of scores by distance, if there are some."""
    attention = next(iter(spec.attentions), None)
    if attention is None:
        return
    if attention.terms is not None:
        yield DistanceTerms(tuple(_term_tensors(spec, attention.terms)))
    if attention.num_distance_buckets:
        each = Axis("rows", attention.num_distance_buckets, attention.num_heads)
        name = f"{spec.names.module('model.relative_attention_bias')}.weight"
        weight = Vector(name, each.size, each, is_folded=True)
        yield DistanceBuckets(weight, attention.max_distance, not spec.is_encoder)


def _term_tensors(spec: ModelSpec, terms: DistanceTermsSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of terms by distance, but those that the layers have anyway."""
    size, module = spec.hidden_size, spec.names.module
    yield f"{module('model.distances')}.weight", (2 * terms.span, size)
    if terms.is_normed:
        yield from ((f"{module('model.distance_norm')}.{name}", (size,)) for name in ("weight", "bias"))
    for at in () if terms.is_shared else (f"model.layers.{i}.self_attn." for i in range(spec.num_layers)):
        for name in ("pos_key_proj", "pos_query_proj"):
            yield f"{module(at + name)}.weight", (spec.num_heads * spec.head_dim, size)
            yield f"{module(at + name)}.bias", (spec.num_heads * spec.head_dim,)
