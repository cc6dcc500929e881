"""Low-rank adapters (LoRA): output += scale * (input A^T) B^T, for the rows of a step that have an adapter.

Two instructions surround a matmul: `shrink` multiplies the rows that the matmul reads by A, into `shrunk`; `expand`
multiplies these by B and adds them to the matmul's output. A layer of several modules (qkv, gate and up) has an A and a
B for each of them, its parts. Rows come in groups of one adapter, so that A and B are read once for a group; other rows
are not touched. An element's sum has one order whatever else is in the step.

A is rows [rank, k], with zeros up to a multiple of LORA_RANKS; B is tiles [tiles][rank][16], a lane for each column.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

from ..device.layout import LORA_RANKS
from .isa import simd
from .isa.element_types import BFLOAT16, FLOAT32, Cell
from .isa.jit import inline, made_kernel, share_begin
from .isa.memory import load_f32, load_i32, load_i64, store_f32
from .panels import rows_of_bf16, rows_of_f32, rows_of_i8, rows_of_i8_chunks
from .records import STEP, offsets, size_of
from .rotation import rotate_back

# float32 rows, or panels of a type
Form = Literal["rows", "float32", "bfloat16", "int8", "int8 rotated", "int8 chunks"]
FORMS: tuple[Form, ...] = get_args(Form)


class PartRecord(NamedTuple):
    """One module of a linear layer in one slot."""

    rank: int  # 0 if the slot's adapter has no such module
    scale: int  # bits of a float32
    a: int  # byte offset of A in the memory of its core
    b: int  # byte offset of B
    column: int  # of `shrunk`, where this part begins
    first_tile: int  # of the layer's output
    tile_step: int  # between two of the module's tiles; 2 if gate and up alternate
    num_tiles: int


class ShrinkOperands(NamedTuple):
    """One core's `shrunk[row, column:] = scale * (inputs[row] A^T)`."""

    inputs: int  # [T, k] in `form`
    form: int  # index in FORMS
    row_scales: int  # float32 [T]: int8 panels only
    table: int  # PartRecord [slots][parts]
    parts: int
    weights: int  # A of all slots
    k: int  # a multiple of 64
    shrunk: int  # output, float32 [T, width]
    width: int
    scratch: int  # two float32 rows for each worker, `scratch_stride` bytes apart
    scratch_stride: int


class ExpandOperands(NamedTuple):
    """One core's `outputs[row] += shrunk[row] B^T`."""

    shrunk: int  # float32 [T, width]
    width: int
    table: int  # PartRecord [slots][parts]
    parts: int
    weights: int  # B of all slots
    outputs: int  # float32 rows, `ldc` apart
    ldc: int  # a multiple of 16


PART, SHRINK, EXPAND = offsets(PartRecord), offsets(ShrinkOperands), offsets(ExpandOperands)
PART_BYTES, SHRINK_BYTES, EXPAND_BYTES = size_of(PartRecord), size_of(ShrinkOperands), size_of(ExpandOperands)
_GROUP_BYTES = 12


@inline
def _float32_row(op, row, k, to):  # type: ignore[no-untyped-def]
    """Return the address of an input row as float32: its own, or `to`, after converting it there."""
    inputs, form = load_i64(op + SHRINK.inputs), load_i64(op + SHRINK.form)
    if form == 0:
        return inputs + row * k * 4
    if form == 1:
        rows_of_f32(inputs, row, k, to, 1.0)
    elif form == 2:
        rows_of_bf16(inputs, row, k, to, 1.0)
    elif form <= 4:
        rows_of_i8(inputs, row, k, to, load_f32(load_i64(op + SHRINK.row_scales) + row * 4))
        if form == 4:
            rotate_back(to, k)
    else:
        rows_of_i8_chunks(inputs, row, k, to)
    return to


@inline
def _pair(rows, i, count):  # type: ignore[no-untyped-def]
    """Return rows 2 i and 2 i + 1 of a group; the last row twice if their number is odd."""
    return load_i32(rows + 8 * i), load_i32(rows + 4 * min(2 * i + 1, count - 1))


def _dots(cell: Cell) -> Any:
    load, size = cell.load, cell.size

    @inline
    def dots(x, y, a, k):  # type: ignore[no-untyped-def]
        """Multiply two rows by four of A, summed over k in lanes."""
        c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = simd.splat(0.0)
        for i in range(0, k, 16):
            at, p, q = a + i * size, simd.load(x + i * 4), simd.load(y + i * 4)
            w0, w1 = load(at), load(at + k * size)
            w2, w3 = load(at + 2 * k * size), load(at + 3 * k * size)
            c0, c1, c2, c3 = simd.fma(p, w0, c0), simd.fma(p, w1, c1), simd.fma(p, w2, c2), simd.fma(p, w3, c3)
            d0, d1, d2, d3 = simd.fma(q, w0, d0), simd.fma(q, w1, d1), simd.fma(q, w2, d2), simd.fma(q, w3, d3)
        return c0, c1, c2, c3, d0, d1, d2, d3

    return dots


@inline
def _store_sums(to, scale, c0, c1, c2, c3):  # type: ignore[no-untyped-def]
    store_f32(to, simd.sum_lanes(c0) * scale)
    store_f32(to + 4, simd.sum_lanes(c1) * scale)
    store_f32(to + 8, simd.sum_lanes(c2) * scale)
    store_f32(to + 12, simd.sum_lanes(c3) * scale)


@inline
def _num_chunks(table, parts):  # type: ignore[no-untyped-def]
    """Return the number of chunks of four rows of A, over all parts of one slot."""
    count = 0
    for part in range(parts):
        count += (load_i64(table + part * PART_BYTES + PART.rank) + LORA_RANKS - 1) // LORA_RANKS
    return count


def _shrink(cell: Cell) -> Any:
    """Return a kernel's loop over groups, whose items are rows of A, or else of inputs."""
    dots, size = _dots(cell), cell.size

    @inline
    def shrink_pair(op, table, pair, chunks, scratch):  # type: ignore[no-untyped-def]
        """Multiply two rows by the chunks from chunks[0] to chunks[1]."""
        k, width = load_i64(op + SHRINK.k), load_i64(op + SHRINK.width)
        x, y = _float32_row(op, pair[0], k, scratch), _float32_row(op, pair[1], k, scratch + k * 4)
        to = load_i64(op + SHRINK.shrunk)
        begin = 0
        for part in range(load_i64(op + SHRINK.parts)):
            record = table + part * PART_BYTES
            count = (load_i64(record + PART.rank) + LORA_RANKS - 1) // LORA_RANKS
            scale, column = load_f32(record + PART.scale), load_i64(record + PART.column)
            a = load_i64(op + SHRINK.weights) + load_i64(record + PART.a)
            for chunk in range(max(0, chunks[0] - begin), min(count, chunks[1] - begin)):
                c0, c1, c2, c3, d0, d1, d2, d3 = dots(x, y, a + chunk * LORA_RANKS * k * size, k)
                at = to + (column + chunk * LORA_RANKS) * 4
                _store_sums(at + pair[0] * width * 4, scale, c0, c1, c2, c3)
                _store_sums(at + pair[1] * width * 4, scale, d0, d1, d2, d3)
            begin += count

    @inline
    def shrink(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        for item in range(cores * load_i64(step + STEP.num_lora_groups)):
            op = operands + item % cores * SHRINK_BYTES
            group = load_i64(step + STEP.lora_groups) + item // cores * _GROUP_BYTES
            rows = load_i64(step + STEP.lora_rows) + load_i32(group + 4) * 4
            num_rows, parts = load_i32(group + 8) - load_i32(group + 4), load_i64(op + SHRINK.parts)
            table = load_i64(op + SHRINK.table) + load_i32(group) * parts * PART_BYTES
            scratch = load_i64(op + SHRINK.scratch) + worker * load_i64(op + SHRINK.scratch_stride)
            pairs, chunks = (num_rows + 1) // 2, _num_chunks(table, parts)
            low, high, first, last = 0, pairs, 0, chunks
            if chunks >= workers:
                first, last = share_begin(chunks, worker, workers), share_begin(chunks, worker + 1, workers)
            else:
                low, high = share_begin(pairs, worker, workers), share_begin(pairs, worker + 1, workers)
            if first < last:
                for i in range(low, high):
                    shrink_pair(op, table, _pair(rows, i, num_rows), (first, last), scratch)

    return shrink


@inline
def _add_to(at, value):  # type: ignore[no-untyped-def]
    simd.store(at, simd.add(simd.load(at), value))


def _expand_pair(cell: Cell) -> Any:
    load, line = cell.load, 16 * cell.size

    @inline
    def expand_pair(op, record, pair, low, high):  # type: ignore[no-untyped-def]
        """Multiply two rows by a part's tiles from `low` to `high`."""
        row_bytes, width = load_i64(op + EXPAND.ldc) * 4, load_i64(op + EXPAND.width) * 4
        rank, first, step = load_i64(record), load_i64(record + PART.first_tile), load_i64(record + PART.tile_step)
        shrunk = load_i64(op + EXPAND.shrunk) + load_i64(record + PART.column) * 4
        x, y = shrunk + pair[0] * width, shrunk + pair[1] * width
        b, outputs = load_i64(op + EXPAND.weights) + load_i64(record + PART.b), load_i64(op + EXPAND.outputs)
        for tile in range(low, high):
            c = d = simd.splat(0.0)
            for r in range(rank):
                w = load(b + (tile * rank + r) * line)
                c = simd.fma(simd.splat(load_f32(x + r * 4)), w, c)
                d = simd.fma(simd.splat(load_f32(y + r * 4)), w, d)
            at = outputs + (first + tile * step) * 64
            _add_to(at + pair[0] * row_bytes, c)
            if pair[0] != pair[1]:
                _add_to(at + pair[1] * row_bytes, d)

    return expand_pair


def _expand(cell: Cell) -> Any:
    """Return a kernel's loop over groups, whose items are tiles of outputs."""
    expand_pair = _expand_pair(cell)

    @inline
    def expand_group(op, table, rows, num_rows, begin, end):  # type: ignore[no-untyped-def]
        """Add a group's rows to the output's tiles from `begin` to `end`: parts may share a tile, workers do not."""
        for i in range((num_rows + 1) // 2):
            pair = _pair(rows, i, num_rows)
            for part in range(load_i64(op + EXPAND.parts)):
                record = table + part * PART_BYTES
                if load_i64(record) > 0:
                    first, step = load_i64(record + PART.first_tile), load_i64(record + PART.tile_step)
                    low = max(0, (begin - first + step - 1) // step)
                    high = min(load_i64(record + PART.num_tiles), (end - first + step - 1) // step)
                    expand_pair(op, record, pair, low, high)

    @inline
    def expand(operands, cores, step, worker, workers):  # type: ignore[no-untyped-def]
        for item in range(cores * load_i64(step + STEP.num_lora_groups)):
            op = operands + item % cores * EXPAND_BYTES
            group = load_i64(step + STEP.lora_groups) + item // cores * _GROUP_BYTES
            rows = load_i64(step + STEP.lora_rows) + load_i32(group + 4) * 4
            slot = load_i32(group) * load_i64(op + EXPAND.parts)
            table, tiles = load_i64(op + EXPAND.table) + slot * PART_BYTES, load_i64(op + EXPAND.ldc) // 16
            begin, end = share_begin(tiles, worker, workers), share_begin(tiles, worker + 1, workers)
            expand_group(op, table, rows, load_i32(group + 8) - load_i32(group + 4), begin, end)

    return expand


lora_shrink_bf16 = made_kernel("lora_shrink_bf16", _shrink(BFLOAT16))
lora_shrink_f32 = made_kernel("lora_shrink_f32", _shrink(FLOAT32))
lora_expand_bf16 = made_kernel("lora_expand_bf16", _expand(BFLOAT16))
lora_expand_f32 = made_kernel("lora_expand_f32", _expand(FLOAT32))
