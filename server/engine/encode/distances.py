"""Biases of scores by distance: a learned number for each head and bucket of distances, as a table of distances.

DeBERTa's vectors by distance are projected for each layer.

Buckets are T5's (Raffel et al. 2020, section 2.1), which MPNet has too. In both directions, half of them are for keys
behind the query, otherwise all are. Half of a direction's are for one distance each, and the others for ranges that
grow by the logarithm up to the longest distance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...checkpoint.checkpoint import Checkpoint
from ...device.attention_layout import CHUNK
from ...device.core import NeuronCore
from ...device.hbm import Buffer
from ...device.layout import FLOAT32_BYTES
from ...models.decoder import decoder_graph
from ...models.ops import DistanceBuckets
from ..operands import DistanceBias, Placement

Float32 = npt.NDArray[np.float32]


def buckets(
    distances: npt.NDArray[np.int64], num_buckets: int, max_distance: int = 128, is_causal: bool = False
) -> npt.NDArray[np.int64]:
    """Return the bucket of each distance, the key's position minus the query's.

    Computed in float32, as in training: the bucket of a distance at an edge depends on it.
    """
    half = num_buckets if is_causal else num_buckets // 2
    exact, away = half // 2, np.maximum(-distances, 0) if is_causal else np.abs(distances)
    ratio = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact)) / np.float32(
        math.log(max_distance / exact)
    )
    far = np.minimum(exact + (ratio * np.float32(half - exact)).astype(np.int64), half - 1)
    found: npt.NDArray[np.int64] = np.where(away < exact, away, far)
    return found if is_causal else found + half * (distances > 0)


def row_length(max_length: int) -> int:
    """Columns of the table: every distance, and the chunk that a kernel reads beyond the last key."""
    return 2 * max_length + CHUNK


def distance_bias(op: DistanceBuckets, weights: Float32, max_length: int) -> Float32:
    """Return the bias of each distance, [heads, row_length]; distance 0 is in column `max_length`."""
    distances = np.arange(row_length(max_length)) - max_length
    found = buckets(distances, op.weight.shape[0], op.max_distance, op.is_causal)
    return np.ascontiguousarray(weights.reshape(op.weight.shape)[found].T)


def with_distances(at: Placement, max_length: int, checkpoint: Checkpoint | None = None) -> Placement:
    """Add the tables of a model with biases by distance, for texts of up to `max_length`; return other models as given.

    Weights of projections come from the `checkpoint`. Raises HostMemoryError and CheckpointError.
    """
    op = next((op for op in decoder_graph(at.spec).prelude if isinstance(op, DistanceBuckets)), None)
    if op is None:
        return at
    if checkpoint is not None and op.norm:
        rows = zip(*(_projected(at, op, max_length, checkpoint, is_key) for is_key in (True, False)), strict=True)
        return replace(at, distances=DistanceBias((), row_length(max_length), max_length, tuple(rows)))
    values: Float32 = at.weights.vector(op.weight).array(np.float32, op.weight.size)
    shards = _shards(at, distance_bias(op, values, max_length))
    return replace(at, distances=DistanceBias(shards, row_length(max_length), max_length))


def _projected(
    at: Placement, op: DistanceBuckets, max_length: int, checkpoint: Checkpoint, is_key: bool
) -> Iterator[tuple[Buffer, ...]]:
    """Yield each layer's keys [heads, head_dim, row_length], or queries [heads, row_length, head_dim], by distance."""
    spec, attention = at.spec, at.spec.attention
    rows, weight, bias = (checkpoint.load(vector.tensor) for vector in op.vectors)
    rows = rows - rows.mean(axis=1, keepdims=True)
    rows /= np.sqrt((rows * rows).mean(axis=1, keepdims=True) + np.float32(spec.stack.norm.eps))
    rows = (rows * weight + bias)[row_numbers(op, max_length - np.arange(row_length(max_length)))]
    name, scale, order = ("k_proj", 1.0, (1, 2, 0)) if is_key else ("q_proj", attention.scale or 1.0, (1, 0, 2))
    for i in range(spec.num_layers):
        module = spec.names.module(f"model.layers.{i}.self_attn.{name}")
        values = rows @ checkpoint.load(f"{module}.weight").T + checkpoint.load(f"{module}.bias")
        by_head = (values * np.float32(scale)).reshape(len(rows), attention.num_heads, -1).transpose(order)
        yield _shards(at, by_head.reshape(attention.num_heads, -1))


def row_numbers(op: DistanceBuckets, distances: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return DeBERTa's row of each distance, the query's position minus the key's; in float32, as in training."""
    span, away = op.weight.shape[0] // 2, np.abs(distances)
    if op.max_distance:
        middle = span // 2
        longest = np.log(np.float32((op.max_distance - 1) / middle))
        ratio = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(middle)) / longest
        far = np.ceil(ratio * np.float32(middle - 1)).astype(np.int64) + middle
        distances = np.where(away <= middle, distances, np.sign(distances) * far)
    return np.clip(distances + span, 0, 2 * span - 1)


def _shards(at: Placement, table: Float32) -> tuple[Buffer, ...]:
    """Copy the rows of each core's heads to the core."""
    heads = at.shard.of_heads(at.spec.attention.heads)
    return tuple(_rows(core, table, heads.q_heads(core.index)) for core in at.cores)


def _rows(core: NeuronCore, table: Float32, heads: tuple[int, ...]) -> Buffer:
    """Copy the rows of a core's heads to the core; a slot without a head has zeros."""
    buffer = core.allocate("tables", "distance bias", len(heads) * table.shape[1] * FLOAT32_BYTES)
    rows = buffer.array(np.float32, len(heads), table.shape[1])
    for slot, head in enumerate(heads):
        rows[slot] = table[head] if head >= 0 else 0
    return buffer
