"""Orders of rows or columns that conversion to GGUF changes: for each place of the model that of the file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Order = npt.NDArray[np.intp]


def in_pairs(size: int, num_heads: int) -> Order:
    """Return the order of rotary pairs: rows j and d / 2 + j of a head of d rows are neighbours in the file."""
    half = size // num_heads // 2
    return np.arange(size).reshape(num_heads, half, 2).swapaxes(1, 2).reshape(-1)


def in_runs(size: int, num_kv_heads: int, num_queries: int) -> Order:
    """Return the order of q, k and v of each KV head: the file has runs of all queries, keys and values."""
    width = size // (num_kv_heads * (num_queries + 2))
    heads = np.arange(num_kv_heads * (num_queries + 2))
    queries, rest = np.split(heads, [num_kv_heads * num_queries])
    by_head = np.concatenate([queries.reshape(num_kv_heads, -1), rest.reshape(2, -1).T], axis=1).reshape(-1)
    return _widened(by_head, width)


def by_key_heads(size: int, num_key_heads: int, num_value_heads: int, width: int) -> Order:
    """Return the order of value heads side by side that share a key head: in the file, key heads take turns.

    What is before the value heads stays in place.
    """
    first = size - num_value_heads * width
    heads = np.arange(num_value_heads).reshape(-1, num_key_heads).T.reshape(-1)
    return np.concatenate([np.arange(first), first + _widened(heads, width)])


def _widened(order: Order, width: int) -> Order:
    """Return the order of elements, of which each entry of `order` has `width`."""
    return (order[:, None] * width + np.arange(width)).reshape(-1)
