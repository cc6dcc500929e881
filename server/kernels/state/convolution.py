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

_CHANNELS = 64  # of one item: four cache lines of each row


@inline
def _input(op, row, channel, count):  # type: ignore[no-untyped-def]
    """Return the convolution's input: source, or before * source."""
    at = (row * load_i64(op + CONVOLUTION.source_ldc) + channel) * 4
    value = load_part(load_i64(op + CONVOLUTION.source) + at, count)
    before = load_i64(op + CONVOLUTION.before)
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
def _output(op, state, first, row, channel, count):  # type: ignore[no-untyped-def]
    """Compute sixteen channels of one row of a sequence whose first row is `first`."""
    taps, channels = load_i64(op + CONVOLUTION.taps), load_i64(op + CONVOLUTION.channels)
    weights, bias = load_i64(op + CONVOLUTION.weights) + channel * 4, load_i64(op + CONVOLUTION.bias)
    total = simd.splat(0.0)
    if bias != 0:
        total = load_part(bias + channel * 4, count)
    missing = max(0, taps - 1 - (row - first))  # inputs that lie in the state
    for i in range(missing):
        value = _kept(op, state, row - first + i, channel, count)
        total = simd.fma(value, load_part(weights + i * channels * 4, count), total)
    for i in range(missing, taps):
        value = _input(op, row - taps + 1 + i, channel, count)
        total = simd.fma(value, load_part(weights + i * channels * 4, count), total)
    if load_i64(op + CONVOLUTION.has_silu) != 0:
        total = simd.mul(total, sigmoid(total))
    after = load_i64(op + CONVOLUTION.after)
    if after != 0:
        at = (row * load_i64(op + CONVOLUTION.source_ldc) + channel) * 4
        total = simd.mul(load_part(after + at, count), total)
    to = load_i64(op + CONVOLUTION.output) + (row * load_i64(op + CONVOLUTION.output_ldc) + channel) * 4
    store_part(to, total, count)


@inline
def _keep(op, source, to, first, last, channel, count):  # type: ignore[no-untyped-def]
    """Leave the last inputs in the state at `to`; `source` may be the same, so the oldest come first."""
    kept, channels = load_i64(op + CONVOLUTION.taps) - 1, load_i64(op + CONVOLUTION.channels)
    for i in range(kept):
        at = i + last - first
        value = _kept(op, source, at, channel, count) if at < kept else _input(op, first + at - kept, channel, count)
        store_part(to + (i * channels + channel) * 4, value, count)


@inline
def _do_item(operands, step, part, seq, worker):  # type: ignore[no-untyped-def]
    blocks = _blocks(operands)
    op, begin = operands + part // blocks * CONVOLUTION_BYTES, part % blocks * _CHANNELS
    starts = load_i64(step + STEP.query_start) + seq * 4
    first, last = load_i32(starts), load_i32(starts + 4)
    states, slot_bytes = load_i64(op + CONVOLUTION.states), load_i64(op + CONVOLUTION.slot_bytes)
    source = slot_address(states, slot_bytes, load_i64(step + STEP.state_read), seq)
    to = states + load_i32(load_i64(step + STEP.state_write) + seq * 4) * slot_bytes
    channels = load_i64(op + CONVOLUTION.channels)
    for row in range(first, last):
        for channel in range(begin, min(begin + _CHANNELS, channels), 16):
            _output(op, source, first, row, channel, channels - channel)
    for channel in range(begin, min(begin + _CHANNELS, channels), 16):
        _keep(op, source, to, first, last, channel, channels - channel)


@inline
def _blocks(operands):  # type: ignore[no-untyped-def]
    return (load_i64(operands + CONVOLUTION.max_channels) + _CHANNELS - 1) // _CHANNELS


@inline
def _parts(operands, cores):  # type: ignore[no-untyped-def]
    return cores * _blocks(operands)


convolve = made_kernel("convolve", divided(STEP.num_seqs, _parts, _do_item))
