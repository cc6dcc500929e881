"""Several streams of vectors in place of one (models/layer.py, StreamsSpec). Work is divided by tokens.

A token's modes are tanh(router @ norm(x) / size), one number for each stream. All rows are float32 [T, width], zero
beyond `size`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .isa import simd
from .isa.jit import inline, made_kernel, share_begin
from .isa.memory import load_f32, load_i64, store_f32
from .isa.softcap import tanh
from .records import STEP, offsets

_LEAST_MEAN_SQUARE = 1e-5  # of a product that is made as long as the first stream: Gemma3nTextModel of transformers


class StreamsOperands(NamedTuple):
    """Operands of all kernels of this module, on one core for all; a field that a kernel does not read is 0."""

    hidden: int  # the stream that goes through the layers
    streams: int  # the others, `stride` bytes apart; the first of them is the last state of the stream
    stride: int
    num_streams: int
    width: int
    size: int
    scratch: int  # one area of `scratch_stride` bytes for each worker
    scratch_stride: int
    norm: int = 0  # float32 [size]
    eps: int = 0  # bits of a float32
    router: int = 0  # float32 [num_streams, size]
    mixes: int = 0  # float32 [num_streams ** 2, num_streams], or to correct [num_streams, num_streams]
    scale: int = 0  # float32 [width], or 0
    branch: int = 0  # to add


_AT = offsets(StreamsOperands)


def _by_tokens(change: Any) -> Any:
    """Return a kernel's loop, which changes all streams of each token."""

    @inline
    def loop(op, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        tokens, row_bytes = load_i64(step + STEP.num_tokens), load_i64(op + _AT.width) * 4
        scratch = load_i64(op + _AT.scratch) + worker * load_i64(op + _AT.scratch_stride)
        for t in range(share_begin(tokens, worker, workers), share_begin(tokens, worker + 1, workers)):
            change(op, load_i64(op + _AT.streams) + t * row_bytes, t * row_bytes, row_bytes, scratch)

    return loop


@inline
def _mean_square(op, row):  # type: ignore[no-untyped-def]
    squares = simd.splat(0.0)
    for i in range(0, load_i64(op + _AT.width) * 4, 64):
        squares = simd.fma(simd.load(row + i), simd.load(row + i), squares)
    return simd.sum_lanes(squares) / load_i64(op + _AT.size)


@inline
def _write_mixes(op, row, rows, modes):  # type: ignore[no-untyped-def]
    """Write the modes of a row, and behind them the first `rows` products of `mixes` with them."""
    size, norm, count = load_i64(op + _AT.size), load_i64(op + _AT.norm), load_i64(op + _AT.num_streams)
    scale = 1.0 / math.sqrt(_mean_square(op, row) + load_f32(op + _AT.eps)) / size
    for k in range(count):
        weights, total = load_i64(op + _AT.router) + k * size * 4, simd.splat(0.0)
        for i in range(0, size * 4, 64):
            total = simd.fma(simd.mul(simd.load(row + i), simd.load(norm + i)), simd.load(weights + i), total)
        store_f32(modes + k * 4, simd.first_lane(tanh(simd.splat(simd.sum_lanes(total) * scale))))
    for k in range(rows):
        product = 0.0
        for p in range(count):
            product += load_f32(load_i64(op + _AT.mixes) + (k * count + p) * 4) * load_f32(modes + p * 4)
        store_f32(modes + (count + k) * 4, product)


@inline
def _predict(op, first, at, row_bytes, modes):  # type: ignore[no-untyped-def]
    """Add to each stream a mix of all, and copy the first to `hidden`."""
    count, stride = load_i64(op + _AT.num_streams), load_i64(op + _AT.stride)
    mixes, sums = modes + count * 4, modes + (count + count * count) * 4
    _write_mixes(op, first, count * count, modes)
    for i in range(0, row_bytes, 64):
        for to in range(count):
            total = simd.load(first + to * stride + i)
            for source in range(count):
                by = simd.splat(load_f32(mixes + (to * count + source) * 4))
                total = simd.fma(simd.load(first + source * stride + i), by, total)
            simd.store(sums + to * 64, total)
        for to in range(count):
            simd.store(first + to * stride + i, simd.load(sums + to * 64))
        simd.store(load_i64(op + _AT.hidden) + at + i, simd.load(sums))


@inline
def _correct(op, first, at, row_bytes, modes):  # type: ignore[no-untyped-def]
    """Add a share of the change from the first stream to `hidden`, and replace `hidden` by the first, scaled."""
    count, stride, scale = load_i64(op + _AT.num_streams), load_i64(op + _AT.stride), load_i64(op + _AT.scale)
    hidden = load_i64(op + _AT.hidden) + at
    _write_mixes(op, hidden, count, modes)
    for i in range(0, row_bytes, 64):
        change = simd.sub(simd.load(hidden + i), simd.load(first + i))
        for to in range(count):
            by = simd.splat(load_f32(modes + (count + to) * 4) + 1.0)
            simd.store(first + to * stride + i, simd.fma(change, by, simd.load(first + to * stride + i)))
        value = simd.load(first + i)
        simd.store(hidden + i, value if scale == 0 else simd.mul(value, simd.load(scale + i)))


@inline
def _add(op, first, at, row_bytes, scratch):  # type: ignore[no-untyped-def]
    """Add the branch to all streams but the first."""
    for to in range(1, load_i64(op + _AT.num_streams)):
        row = first + to * load_i64(op + _AT.stride)
        for i in range(0, row_bytes, 64):
            simd.store(row + i, simd.add(simd.load(row + i), simd.load(load_i64(op + _AT.branch) + at + i)))


def _match(merges: bool) -> Any:
    @inline
    def match(op, first, at, row_bytes, scratch):  # type: ignore[no-untyped-def]
        """Make streams as long as the first, which is `hidden` before; or to merge them, `hidden` is their mean."""
        hidden, count = load_i64(op + _AT.hidden) + at, load_i64(op + _AT.num_streams)
        for i in range(0, row_bytes, 64):
            if merges:
                simd.store(hidden + i, simd.load(first + i))
            else:
                simd.store(first + i, simd.load(hidden + i))
        wanted = math.sqrt(_mean_square(op, first))
        for to in range(1, count):
            row = first + to * load_i64(op + _AT.stride)
            by = simd.splat(wanted / math.sqrt(max(_mean_square(op, row), _LEAST_MEAN_SQUARE)))
            for i in range(0, row_bytes, 64):
                simd.store(row + i, simd.mul(simd.load(row + i), by))
                if merges:
                    simd.store(hidden + i, simd.add(simd.load(hidden + i), simd.load(row + i)))
        if merges:
            for i in range(0, row_bytes, 64):
                simd.store(hidden + i, simd.mul(simd.load(hidden + i), simd.splat(1.0 / count)))

    return match


predict_streams = made_kernel("predict_streams", _by_tokens(_predict))
correct_streams = made_kernel("correct_streams", _by_tokens(_correct))
add_to_streams = made_kernel("add_to_streams", _by_tokens(_add))
spread_streams = made_kernel("spread_streams", _by_tokens(_match(merges=False)))
merge_streams = made_kernel("merge_streams", _by_tokens(_match(merges=True)))
