"""Inputs of layers by token, from a projection and a table, and their products with activations."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .isa import simd
from .isa.element_types import BFLOAT16, FLOAT32, Cell
from .isa.jit import inline, kernel, made_kernel, share_begin
from .isa.memory import load_f32, load_i32, load_i64
from .records import STEP, offsets, size_of


class LayerInputsOperands(NamedTuple):
    """One core's rows of the table of `values = (norm(values) + table[token] * sqrt(size)) / sqrt(2)`."""

    table: int  # [vocab_per_core, width]
    vocab_per_core: int
    vocab: int  # other tokens take the first row
    values: int  # float32 [T, width], the projection before, the same address on every core
    width: int
    norm: int  # float32 [size]
    eps: int  # bits of a float32
    layers: int
    size: int  # a multiple of 16


class LayerInputOperands(NamedTuple):
    """One core's `activated *= inputs`."""

    activated: int  # float32 [T, width]
    width: int
    inputs: int  # address of the first token's; float32, `stride` bytes from one token's to the next
    stride: int


_ALL, _ALL_BYTES = offsets(LayerInputsOperands), size_of(LayerInputsOperands)
_ONE, _ONE_BYTES = offsets(LayerInputOperands), size_of(LayerInputOperands)


def _layer_inputs(cell: Cell) -> Any:
    load, cell_bytes = cell.load, cell.size

    @inline
    def layer_inputs(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        tokens, width = load_i64(step + STEP.num_tokens), load_i64(operands + _ALL.width)
        size, layers, norm = (
            load_i64(operands + _ALL.size),
            load_i64(operands + _ALL.layers),
            load_i64(operands + _ALL.norm),
        )
        half = math.sqrt(0.5)
        own, of_table, eps = simd.splat(half), simd.splat(math.sqrt(size) * half), load_f32(operands + _ALL.eps)
        per_core = load_i64(operands + _ALL.vocab_per_core)
        for t in range(share_begin(tokens, worker, workers), share_begin(tokens, worker + 1, workers)):
            token = load_i32(load_i64(step + STEP.token_ids) + t * 4)
            if token >= load_i64(operands + _ALL.vocab):
                token = 0
            row = (
                load_i64(operands + token // per_core * _ALL_BYTES + _ALL.table) + token % per_core * width * cell_bytes
            )
            values = load_i64(operands + _ALL.values) + t * width * 4
            for begin in range(0, layers * size, size):
                squares = simd.splat(0.0)
                for i in range(begin, begin + size, 16):
                    value = simd.load(values + i * 4)
                    squares = simd.fma(value, value, squares)
                scale = simd.mul(simd.splat(1.0 / math.sqrt(simd.sum_lanes(squares) / size + eps)), own)
                for i in range(0, size, 16):
                    at = begin + i
                    value = simd.mul(simd.mul(simd.load(values + at * 4), scale), simd.load(norm + i * 4))
                    simd.store(values + at * 4, simd.fma(load(row + at * cell_bytes), of_table, value))

    return layer_inputs


layer_inputs_bf16 = made_kernel("layer_inputs_bf16", _layer_inputs(BFLOAT16))
layer_inputs_f32 = made_kernel("layer_inputs_f32", _layer_inputs(FLOAT32))


@kernel
def multiply_input(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Multiply the activations of every core by its part of a layer's inputs."""
    rows = load_i64(step + STEP.num_tokens)
    for item in range(share_begin(cores * rows, worker, workers), share_begin(cores * rows, worker + 1, workers)):
        op, row = operands + item // rows * _ONE_BYTES, item % rows
        width = load_i64(op + _ONE.width)
        activated = load_i64(op + _ONE.activated) + row * width * 4
        inputs = load_i64(op + _ONE.inputs) + row * load_i64(op + _ONE.stride)
        for i in range(0, width, 16):
            simd.store(activated + i * 4, simd.mul(simd.load(activated + i * 4), simd.load(inputs + i * 4)))
