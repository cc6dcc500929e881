"""Several streams of vectors in place of one (models/layer.py, StreamsSpec). Work is divided by tokens.

A token's modes are tanh(router @ norm(x) / size), one number for each stream. All rows are float32 [T, width], zero
beyond `size`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .isa import simd
from .isa.jit import inline, kernel, share_begin
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


@inline
def _mean_square(row, width, size):  # type: ignore[no-untyped-def]
    squares = simd.splat(0.0)
    for i in range(0, width, 16):
        value = simd.load(row + i * 4)
        squares = simd.fma(value, value, squares)
    return simd.sum_lanes(squares) / size


@inline
def _write_modes(op, row, to):  # type: ignore[no-untyped-def]
    """Write the modes of a row."""
    size, norm = load_i64(op + _AT.size), load_i64(op + _AT.norm)
    mean = _mean_square(row, load_i64(op + _AT.width), size)
    scale = 1.0 / math.sqrt(mean + load_f32(op + _AT.eps)) / size
    for k in range(load_i64(op + _AT.num_streams)):
        weights, total = load_i64(op + _AT.router) + k * size * 4, simd.splat(0.0)
        for i in range(0, size, 16):
            normed = simd.mul(simd.load(row + i * 4), simd.load(norm + i * 4))
            total = simd.fma(normed, simd.load(weights + i * 4), total)
        store_f32(to + k * 4, simd.first_lane(tanh(simd.splat(simd.sum_lanes(total) * scale))))


@inline
def _mix(op, row, modes):  # type: ignore[no-untyped-def]
    """Return the product of a row of `mixes` with the modes."""
    count, total = load_i64(op + _AT.num_streams), 0.0
    weights = load_i64(op + _AT.mixes) + row * count * 4
    for p in range(count):
        total += load_f32(weights + p * 4) * load_f32(modes + p * 4)
    return total


@kernel
def predict_streams(op: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Add to each stream a mix of all, and copy the first to `hidden`."""
    tokens, width, count = load_i64(step + STEP.num_tokens), load_i64(op + _AT.width), load_i64(op + _AT.num_streams)
    modes, stride = load_i64(op + _AT.scratch) + worker * load_i64(op + _AT.scratch_stride), load_i64(op + _AT.stride)
    mixes = modes + count * 4
    sums = mixes + count * count * 4
    for t in range(share_begin(tokens, worker, workers), share_begin(tokens, worker + 1, workers)):
        first, hidden = load_i64(op + _AT.streams) + t * width * 4, load_i64(op + _AT.hidden) + t * width * 4
        _write_modes(op, first, modes)
        for row in range(count * count):
            store_f32(mixes + row * 4, _mix(op, row, modes))
        for i in range(0, width * 4, 64):
            for to in range(count):
                total = simd.load(first + to * stride + i)
                for source in range(count):
                    by = simd.splat(load_f32(mixes + (to * count + source) * 4))
                    total = simd.fma(simd.load(first + source * stride + i), by, total)
                simd.store(sums + to * 64, total)
            for to in range(count):
                simd.store(first + to * stride + i, simd.load(sums + to * 64))
            simd.store(hidden + i, simd.load(sums))


@kernel
def correct_streams(op: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Add a share of the change from the first stream to `hidden`, and replace `hidden` by the first, scaled."""
    tokens, width, count = load_i64(step + STEP.num_tokens), load_i64(op + _AT.width), load_i64(op + _AT.num_streams)
    modes, stride = load_i64(op + _AT.scratch) + worker * load_i64(op + _AT.scratch_stride), load_i64(op + _AT.stride)
    shares, scale = modes + count * 4, load_i64(op + _AT.scale)
    for t in range(share_begin(tokens, worker, workers), share_begin(tokens, worker + 1, workers)):
        first, hidden = load_i64(op + _AT.streams) + t * width * 4, load_i64(op + _AT.hidden) + t * width * 4
        _write_modes(op, hidden, modes)
        for row in range(count):
            store_f32(shares + row * 4, _mix(op, row, modes) + 1.0)
        for i in range(0, width * 4, 64):
            change = simd.sub(simd.load(hidden + i), simd.load(first + i))
            for to in range(count):
                by = simd.splat(load_f32(shares + to * 4))
                simd.store(first + to * stride + i, simd.fma(change, by, simd.load(first + to * stride + i)))
            value = simd.load(first + i)
            if scale != 0:
                value = simd.mul(value, simd.load(scale + i))
            simd.store(hidden + i, value)


@kernel
def add_to_streams(op: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Add the branch to all streams but the first."""
    tokens, width = load_i64(step + STEP.num_tokens), load_i64(op + _AT.width)
    for t in range(share_begin(tokens, worker, workers), share_begin(tokens, worker + 1, workers)):
        branch = load_i64(op + _AT.branch) + t * width * 4
        for to in range(1, load_i64(op + _AT.num_streams)):
            row = load_i64(op + _AT.streams) + to * load_i64(op + _AT.stride) + t * width * 4
            for i in range(0, width * 4, 64):
                simd.store(row + i, simd.add(simd.load(row + i), simd.load(branch + i)))


@inline
def _match(op, t):  # type: ignore[no-untyped-def]
    """Make all streams of a token as long as the first."""
    width, size = load_i64(op + _AT.width), load_i64(op + _AT.size)
    first, stride = load_i64(op + _AT.streams) + t * width * 4, load_i64(op + _AT.stride)
    wanted = math.sqrt(_mean_square(first, width, size))
    for to in range(1, load_i64(op + _AT.num_streams)):
        row = first + to * stride
        by = simd.splat(wanted / math.sqrt(max(_mean_square(row, width, size), _LEAST_MEAN_SQUARE)))
        for i in range(0, width * 4, 64):
            simd.store(row + i, simd.mul(simd.load(row + i), by))


@kernel
def spread_streams(op: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Copy `hidden` to the first stream, and make the others as long."""
    tokens, width = load_i64(step + STEP.num_tokens), load_i64(op + _AT.width)
    for t in range(share_begin(tokens, worker, workers), share_begin(tokens, worker + 1, workers)):
        first, hidden = load_i64(op + _AT.streams) + t * width * 4, load_i64(op + _AT.hidden) + t * width * 4
        for i in range(0, width * 4, 64):
            simd.store(first + i, simd.load(hidden + i))
        _match(op, t)


@kernel
def merge_streams(op: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Make the streams as long as the first, and `hidden` their mean."""
    tokens, width, count = load_i64(step + STEP.num_tokens), load_i64(op + _AT.width), load_i64(op + _AT.num_streams)
    for t in range(share_begin(tokens, worker, workers), share_begin(tokens, worker + 1, workers)):
        first, hidden = load_i64(op + _AT.streams) + t * width * 4, load_i64(op + _AT.hidden) + t * width * 4
        _match(op, t)
        for i in range(0, width * 4, 64):
            total = simd.load(first + i)
            for other in range(1, count):
                total = simd.add(total, simd.load(first + other * load_i64(op + _AT.stride) + i))
            simd.store(hidden + i, simd.mul(total, simd.splat(1.0 / count)))
