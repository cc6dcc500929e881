"""Ops before the first layer: rows that are added to the embeddings, norms, projections, and biases by distance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from .linear import Axis, Linear, RowChoice, Vector, WeightRows
from .ops import Activate, Add, AddRows, DistanceBuckets, LayerNorm, Norm, Op, Replace, StreamNorm
from .spec import ModelSpec
from .stream_ops import GivenStates

FRAMES = 3  # that a convolution over sound reads

MakePart = Callable[[str, Axis], WeightRows]
MakeNorm = Callable[[str, str, Axis], Norm | LayerNorm]


def input_ops(spec: ModelSpec, part: MakePart, norm: MakeNorm) -> Iterator[Op]:
    """Yield the ops that change the embeddings of tokens; `part` and `norm` make what a module holds."""
    table, embedded, hidden = spec.stack.input, Axis("hidden", spec.stack.input.size), Axis("hidden", spec.hidden_size)
    if not table.is_projected:
        yield from projection(part, "project_in", embedded, hidden)
    if table.num_channels:
        yield from _convolutions(part, table.num_channels, hidden)
    added = embedded if table.is_projected else hidden
    num_rows: dict[RowChoice, int] = {
        "positions": table.num_positions,
        "token_types": table.num_token_types,
        "tasks": table.num_tasks,
    }
    for by in (each for each, count in num_rows.items() if count):
        rows = part(f"model.embed_{by}", Axis("rows", num_rows[by]))
        yield AddRows(rows, added, by, table.first_position if by == "positions" else 0)
    if table.has_norm:
        yield StreamNorm(norm("embedding norm", "model.embed_norm", added))
    if table.is_projected:
        yield from (Linear("project_in", (part("model.project_in", hidden),), embedded, has_bias=True), Replace())
    if table.joins_states:
        yield from _joined(part, norm, hidden)
    yield from _distances(spec)


def _joined(part: MakePart, norm: MakeNorm, hidden: Axis) -> Iterator[Op]:
    """Yield the projection of the normed embedding beside normed states: the sum of a product of each half."""
    rows = part("model.eh_proj", hidden)
    halves = (replace(rows, module=f"{rows.module}.{name}", tensor=rows.weight) for name in ("embedding", "states"))
    first, second = (
        Linear("join", (half,), hidden, first_column=i * hidden.size, row_length=2 * hidden.size)
        for i, half in enumerate(halves)
    )
    yield from (norm("embedding norm", "model.enorm", hidden), first, Replace())
    yield from (norm("states norm", "model.hnorm", hidden), second, GivenStates(), Add())


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
    """Yield biases or rows by distance, if scores have some."""
    attention, module = next(iter(spec.attentions), None), spec.names.module
    if attention is not None and attention.num_distance_buckets:
        size = spec.hidden_size if attention.has_distance_rows else attention.num_heads
        rows, name = attention.num_distance_buckets, "model.relative_attention_bias"
        weight = Vector(f"{module(name)}.weight", rows * size, rows=rows)
        norm = (f"{module('model.distance_norm')}.{name}" for name in ("weight", "bias") if attention.has_distance_rows)
        norms = tuple(Vector(each, size) for each in norm)
        yield DistanceBuckets(weight, attention.max_distance, not spec.is_encoder, norms)
