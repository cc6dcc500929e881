"""Outer loop of every matmul: column tiles or rows in equal shares, weights as stored or converted first.

Rows may be in groups, each with a matrix of its own, as those of experts are: the groups follow each other, and all
workers share each. An ordinary product is one group.
"""

from __future__ import annotations

from typing import Any

from ..isa.jit import inline, share_begin
from ..isa.memory import load_i64
from ..records import GROUP, GROUP_BYTES, GROUP_TABLE, GROUP_TABLE_BYTES, MATMUL, MATMUL_BYTES

LINE = 64  # bytes of sixteen columns at one word of k
AHEAD = 4096  # bytes from the weights that one row is multiplied by to those that are prefetched
_MANY_ROWS = 128  # for each worker: enough blocks of 32 for equal shares
_NEAR_BYTES = 5 << 18  # most of a second-level cache of 2 MiB; the rest is for weights


def stored_weights(words: int) -> Any:
    """Return weights as they lie in memory, `words` words of k to a tile."""

    @inline
    def weights_of(op, n, width, scratch):  # type: ignore[no-untyped-def]
        """Return the addresses of column tiles n and n + 1 (n again if `width` is 1), and their tiles along k."""
        k_tiles = load_i64(op + MATMUL.k_tiles)
        size = k_tiles * words * LINE
        b0 = load_i64(op + MATMUL.weights) + n * size
        return b0, b0 + (width - 1) * size, k_tiles

    return weights_of


def converted_weights(convert: Any) -> Any:
    """Return weights of 8-bit codes, converted to bfloat16 in the worker's scratch."""

    @inline
    def weights_of(op, n, width, scratch):  # type: ignore[no-untyped-def]
        k_tiles = load_i64(op + MATMUL.k_tiles)
        size = k_tiles * 16 * LINE
        convert(load_i64(op + MATMUL.weights) + n * size, scratch, width * k_tiles)
        return scratch, scratch + (width - 1) * 2 * size, 2 * k_tiles

    return weights_of


def scaled_weights(convert: Any) -> Any:
    """Return weights of 8-bit codes, scaled for each 32 of k and converted to bfloat16 in the worker's scratch."""

    @inline
    def weights_of(op, n, width, scratch):  # type: ignore[no-untyped-def]
        k_tiles = load_i64(op + MATMUL.k_tiles)
        size = k_tiles * 16 * LINE
        scales = load_i64(op + MATMUL.column_scales) + n * k_tiles * LINE
        convert(load_i64(op + MATMUL.weights) + n * size, scales, scratch, width * k_tiles)
        return scratch, scratch + (width - 1) * 2 * size, 2 * k_tiles

    return weights_of


def column_item(column_pair: Any, weights_of: Any) -> Any:
    """Return an item of `matmul_loop` whose weights are in memory before it begins."""

    @inline
    def item(op, n, width, begin, end, scratch):  # type: ignore[no-untyped-def]
        b0, b1, k_tiles = weights_of(op, n, width, scratch)
        column_pair(op, b0, b1, n, width, begin, end, k_tiles)

    return item


@inline
def _block_of(rows, row_bytes):  # type: ignore[no-untyped-def]
    """Return the rows of activations in a block: they stay in the second-level cache while all weights pass by."""
    blocks = (rows * row_bytes + _NEAR_BYTES - 1) // _NEAR_BYTES
    return max(64, ((rows + blocks - 1) // blocks + 31) // 32 * 32)


@inline
def _share(items, rows, row_bytes, weight_bytes, worker, workers):  # type: ignore[no-untyped-def]
    """Return the worker's share: items `first` to `last` of rows `low` to `high`.

    By default a share is columns, so that weights are read once. It is rows, which the worker packed itself and
    continues with, if weights stay in the second-level cache, or if the rows do not and weights are read again anyway.
    It is always rows if the whole step is divided by rows; `worker` is then the index of a share.
    """
    if workers < 0:
        return 0, items, share_begin(rows, worker, workers), share_begin(rows, worker + 1, workers)
    are_columns = weight_bytes > _NEAR_BYTES and rows * row_bytes <= _NEAR_BYTES
    if rows < _MANY_ROWS * workers or are_columns:
        return share_begin(items, worker, workers), share_begin(items, worker + 1, workers), 0, rows
    blocks = (rows + 31) // 32
    low, high = share_begin(blocks, worker, workers), share_begin(blocks, worker + 1, workers)
    return 0, items, low * 32, min(high * 32, rows)


@inline
def _nothing(rows):  # type: ignore[no-untyped-def]
    """Do nothing before the rows of a group."""


def matmul_loop(item_of: Any, tile_bytes: int, prepare: Any = _nothing) -> Any:
    """Return the loop over items: pairs of column tiles of every core.

    `tile_bytes` is the size of a row of activations for one tile of weights. `prepare(rows)` is called before the rows
    of each group.
    """

    @inline
    def of_group(operands, cores, first_row, rows, worker, workers):  # type: ignore[no-untyped-def]
        """Multiply the rows of one group by one record on each of `cores`, which are MATMUL.matrices records apart."""
        n_tiles = load_i64(operands + MATMUL.n_tiles)
        pairs = (n_tiles + 1) // 2
        scratch = load_i64(operands + MATMUL.scratch) + worker * load_i64(operands + MATMUL.scratch_stride)
        row_bytes = load_i64(operands + MATMUL.k_tiles) * tile_bytes
        first, last, low, high = _share(
            cores * pairs, rows, row_bytes, cores * n_tiles * 16 * row_bytes, worker, workers
        )
        stride = load_i64(operands + MATMUL.matrices) * MATMUL_BYTES
        block = _block_of(high - low, row_bytes)
        prepare(rows)
        for begin in range(low, high, block):
            for item in range(first, last):
                op = operands + item // pairs * stride
                n, end = item % pairs * 2, min(begin + block, high)
                item_of(op, n, min(2, n_tiles - n), first_row + begin, first_row + end, scratch)

    @inline
    def matmul(operands, cores, rows, worker, workers):  # type: ignore[no-untyped-def]
        """Multiply `rows` of an ordinary product, or the rows of the operands' groups."""
        groups, count, matrix, begin, end = load_i64(operands + MATMUL.groups), 1, 0, 0, rows
        if groups != 0:
            count = load_i64(groups + GROUP_TABLE.num_groups)
        for i in range(count):
            if groups != 0:
                at = groups + GROUP_TABLE_BYTES + i * GROUP_BYTES
                matrix, begin, end = load_i64(at + GROUP.matrix), load_i64(at + GROUP.begin), load_i64(at + GROUP.end)
            copies = cores // load_i64(operands + MATMUL.matrices)
            of_group(operands + matrix * MATMUL_BYTES, copies, begin, end - begin, worker, workers)

    return matmul


@inline
def rows_of(operands, step):  # type: ignore[no-untyped-def]
    """Return the number of rows in this step."""
    return load_i64(step + load_i64(operands + MATMUL.rows_field))
