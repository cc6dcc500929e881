"""Biases of scores by distance: a learned number for each head and bucket of distances, as a table of distances.

`with_terms` makes DeBERTa's tables, of a row for each distance.

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
from ...models.layer import DistanceTermsSpec
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


def with_distances(at: Placement, max_length: int) -> Placement:
    """Add the tables of a model with biases by distance, for texts of up to `max_length`; return other models as given.

    Raises HostMemoryError.
    """
    op = next((op for op in decoder_graph(at.spec).prelude if isinstance(op, DistanceBuckets)), None)
    if op is None:
        return at
    values: Float32 = at.weights.vector(op.weight).array(np.float32, op.weight.size)
    table, heads = distance_bias(op, values, max_length), at.shard.of_heads(at.spec.attention.heads)
    shards = tuple(_rows(core, table, heads.q_heads(core.index)) for core in at.cores)
    return replace(at, distances=DistanceBias(shards, table.shape[1], max_length))


def with_terms(at: Placement, max_length: int, checkpoint: Checkpoint) -> Placement:
    """Add the tables of a model with terms by distance and content; return other models as given.

    Projections are made in float32 of the files' weights. Raises HostMemoryError and CheckpointError.
    """
    spec, terms = at.spec, at.spec.attention.terms
    if terms is None:
        return at

    def load(module: str, tensor: str = "weight") -> Float32:
        return checkpoint.load(f"{spec.names.module(module)}.{tensor}")

    table = load("model.distances")
    if terms.is_normed:
        table = table - table.mean(axis=1, keepdims=True)
        table /= np.sqrt((table * table).mean(axis=1, keepdims=True) + np.float32(spec.stack.norm.eps))
        table = table * load("model.distance_norm") + load("model.distance_norm", "bias")
    columns = row_length(max_length)
    chosen = term_rows(terms, max_length - np.arange(columns))
    own, heads = ("k_proj", "q_proj") if terms.is_shared else ("pos_key_proj", "pos_query_proj"), spec.attention.heads

    def tables(name: str, scale: float, order: tuple[int, int, int]) -> Iterator[tuple[Buffer, ...]]:
        """Yield each layer's rows of all distances, on each core those of its heads."""
        for module in (f"model.layers.{i}.self_attn.{name}" for i in range(spec.num_layers)):
            rows = (table @ load(module).T + load(module, "bias")) * np.float32(scale)
            each = rows[chosen].reshape(columns, heads.query, -1).transpose(order).reshape(heads.query, -1)
            yield tuple(_rows(core, each, at.shard.of_heads(heads).q_heads(core.index)) for core in at.cores)

    keys, queries = tuple(tables(own[0], 1.0, (1, 2, 0))), tuple(tables(own[1], spec.attention.scale or 1.0, (1, 0, 2)))
    return replace(at, distances=DistanceBias((), columns, max_length, keys, queries))


def term_rows(terms: DistanceTermsSpec, distances: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the row of each distance, the query's position minus the key's; computed in float32, as in training."""
    middle, away = terms.span // 2, np.abs(distances)
    if terms.max_distance:
        longest = np.log(np.float32((terms.max_distance - 1) / middle))
        ratio = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(middle)) / longest
        far = np.sign(distances) * (np.ceil(ratio * np.float32(middle - 1)).astype(np.int64) + middle)
        distances = np.where(away <= middle, distances, far)
    return np.clip(distances + terms.span, 0, 2 * terms.span - 1)


def _rows(core: NeuronCore, table: Float32, heads: tuple[int, ...]) -> Buffer:
    """Copy the rows of a core's heads to the core; a slot without a head has zeros."""
    buffer = core.allocate("tables", "distance bias", len(heads) * table.shape[1] * FLOAT32_BYTES)
    rows = buffer.array(np.float32, len(heads), table.shape[1])
    for slot, head in enumerate(heads):
        rows[slot] = table[head] if head >= 0 else 0
    return buffer
