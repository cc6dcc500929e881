"""Causal convolution of each channel over its last inputs, which the state keeps from step to step.

Lanes are channels. An output's taps are added from the oldest to the newest, wherever a step divides the sequence.
"""

from __future__ import annotations

from ..isa import simd
from ..isa.jit import inline, made_kernel
from ..isa.memory import load_i32, load_i64
from ..matmul.epilogue import sigmoid
from ..records import STEP
from .items import divided, load_part, slot_address, store_part
from .records import CONVOLUTION, CONVOLUTION_BYTES

_CHANNELS = 512  # of one item: rows are read in runs of pages, and a row's channels are divided among workers


@inline
def _input(source, before, at, count):  # type: ignore[no-untyped-def]
    """Return sixteen inputs at a byte offset: source, or before * source."""
    value = load_part(source + at, count)
    if before != 0:
        value = simd.mul(load_part(before + at, count), value)
    return value


@inline
def _kept(op, state, i, channel, count):  # type: ignore[no-untyped-def]
    """Return input `i` of the state, 0 if the sequence has none."""
    if state == 0:
        return simd.splat(0.0)
    return load_part(state + (i * load_i64(op + CONVOLUTION.channels) + channel) * 4, count)


@inline
def _convolve_row(op, state, index, row, begin, end):  # type: ignore[no-untyped-def]
    """Compute channels begin <= c < end of one row, which is row `index` of its sequence."""
    taps, channels = load_i64(op + CONVOLUTION.taps), load_i64(op + CONVOLUTION.channels)
    ldc = load_i64(op + CONVOLUTION.source_ldc) * 4
    source, before = load_i64(op + CONVOLUTION.source), load_i64(op + CONVOLUTION.before)
    after, has_silu = load_i64(op + CONVOLUTION.after), load_i64(op + CONVOLUTION.has_silu)
    weights, bias = load_i64(op + CONVOLUTION.weights), load_i64(op + CONVOLUTION.bias)
    to = load_i64(op + CONVOLUTION.output) + row * load_i64(op + CONVOLUTION.output_ldc) * 4
    missing = max(0, taps - 1 - index)  # inputs that lie in the state
    for channel in range(begin, end, 16):
        count, at, weight = channels - channel, row * ldc + channel * 4, weights + channel * 4
        total = simd.splat(0.0)
        if bias != 0:
            total = load_part(bias + channel * 4, count)
        for i in range(missing):
            value = _kept(op, state, index + i, channel, count)
            total = simd.fma(value, load_part(weight + i * channels * 4, count), total)
        for i in range(missing, taps):
            value = _input(source, before, at - (taps - 1 - i) * ldc, count)
            total = simd.fma(value, load_part(weight + i * channels * 4, count), total)
        if has_silu != 0:
            total = simd.mul(total, sigmoid(total))
        if after != 0:
            total = simd.mul(load_part(after + at, count), total)
        store_part(to + channel * 4, total, count)


@inline
def _keep(op, source, to, first, last, channel, count):  # type: ignore[no-untyped-def]
    """Leave the last inputs in the state at `to`; `source` may be the same, so the oldest come first."""
    kept, channels = load_i64(op + CONVOLUTION.taps) - 1, load_i64(op + CONVOLUTION.channels)
    inputs, before = load_i64(op + CONVOLUTION.source), load_i64(op + CONVOLUTION.before)
    ldc = load_i64(op + CONVOLUTION.source_ldc)
    for i in range(kept):
        at = i + last - first
        if at < kept:
            value = _kept(op, source, at, channel, count)
        else:
            value = _input(inputs, before, ((first + at - kept) * ldc + channel) * 4, count)
        store_part(to + (i * channels + channel) * 4, value, count)


@inline
def _do_item(operands, step, part, seq, worker):  # type: ignore[no-untyped-def]
    blocks = _blocks(operands)
    op, begin = operands + part // blocks * CONVOLUTION_BYTES, part % blocks * _CHANNELS
    starts = load_i64(step + STEP.query_start) + seq * 4
    first, last = load_i32(starts), load_i32(starts + 4)
    states, slot_bytes = load_i64(op + CONVOLUTION.states), load_i64(op + CONVOLUTION.slot_bytes)
    source = slot_address(states, slot_bytes, load_i64(step + STEP.state_read), seq)
    writes = load_i64(step + STEP.state_write)
    channels = load_i64(op + CONVOLUTION.channels)
    end = min(begin + _CHANNELS, channels)
    for row in range(first, last):
        _convolve_row(op, source, row - first, row, begin, end)
    for row in range(first, last):
        slot = load_i32(writes + row * 4)
        if row + 1 == last or load_i32(writes + row * 4 + 4) != slot:
            for channel in range(begin, end, 16):
                _keep(op, source, states + slot * slot_bytes, first, row + 1, channel, channels - channel)


@inline
def _blocks(operands):  # type: ignore[no-untyped-def]
    return (load_i64(operands + CONVOLUTION.max_channels) + _CHANNELS - 1) // _CHANNELS


@inline
def _parts(operands, cores):  # type: ignore[no-untyped-def]
    return cores * _blocks(operands)


convolve = made_kernel("convolve", divided(STEP.num_seqs, _parts, _do_item))
