"""Operands of the kernels of latent attention."""

from __future__ import annotations

from typing import NamedTuple

from ..records import offsets, size_of


class LatentOperands(NamedTuple):
    """One core's part of a layer: the write to the cache, the queries of its heads, and their values.

    A row, of the cache or of a head's queries, has `rank` elements of the latent, then `rotary` rotated ones, and zeros
    up to `row_pad`.
    """

    latent: int  # float32 [T, latent_width], changed in place; the same address on every core
    latent_width: int  # a multiple of sixteen
    norm: int  # float32 [rank]
    eps: int  # bits of a float32
    rank: int
    rotary: int
    row_pad: int  # a multiple of sixteen
    cos: int  # float32 [max_model_len, rotary / 2]
    sin: int
    is_interleaved: int  # 1: rotated pairs are neighbours, 0: they are rotary / 2 apart
    cache: int  # [blocks] of [block_size, row_pad], and [block_size] scales of 8-bit caches
    block_size: int
    block_bytes: int
    kv_group: int  # group of layers whose slots are written
    heads: int
    query: int  # float32 [T, query_width], of each head `size` elements, then `rotary`; changed in place
    query_width: int
    size: int  # elements of a head's query that are not rotated
    weights: int  # [heads * (size + value_size), weight_width]: of each head rows of keys, then of values
    weight_width: int  # elements, zero beyond `rank`
    scale: int  # bits of a float32: softmax scale, folded into the queries
    rows: int  # float32 [T, heads * row_pad]: queries, which attention replaces by weighted rows of the cache
    value_size: int
    values: int  # output, float32 [T, values_width]
    values_width: int


LATENT = offsets(LatentOperands)
LATENT_BYTES = size_of(LatentOperands)
