"""Low-rank adapters against numpy: groups of rows, parts of a layer, every form of inputs; and the gate alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from neuronserve.server.device.layout import LORA_PART_BYTES, LORA_RANKS
from neuronserve.server.kernels.activate import ActivateOperands, activate_rows, gate_panels, gate_rows
from neuronserve.server.kernels.dispatch import host_isas, linear_kernels
from neuronserve.server.kernels.isa.jit import Kernel
from neuronserve.server.kernels.lora import (
    FORMS,
    ExpandOperands,
    Form,
    PartRecord,
    ShrinkOperands,
    lora_expand_bf16,
    lora_expand_f32,
    lora_shrink_bf16,
    lora_shrink_f32,
)
from neuronserve.server.kernels.matmul.epilogue import ACTIVATIONS
from neuronserve.server.kernels.matmul.quantize import dequantize_rows, quantize_rows
from neuronserve.server.kernels.records import STEP, MatmulOperands, StepRecord, size_of
from neuronserve.server.kernels.workers import WorkerPool
from tests.kernels.kernel_bench import (
    Array,
    address,
    aligned,
    float_bits,
    from_panels,
    rounded,
    run,
    step_record,
    to_cell,
    to_panels,
    to_tiles,
)

K, MAX_RANK, ROWS = 128, 12, 21
SHRINK: dict[str, Kernel] = {"bf16": lora_shrink_bf16, "f32": lora_shrink_f32}
EXPAND: dict[str, Kernel] = {"bf16": lora_expand_bf16, "f32": lora_expand_f32}


@dataclass(frozen=True)
class Part:
    """A module's columns in the output of its layer."""

    columns: tuple[int, ...]
    first_tile: int
    step: int
    tiles: int


def neighbours(begin: int, end: int) -> Part:
    """Return a part of consecutive columns, which need not begin with a tile."""
    return Part(tuple(range(begin, end)), begin // 16, 1, -(-end // 16) - begin // 16)


def taking_turns(first: int, count: int) -> Part:
    """Return a part of every other tile."""
    tiles = range(first, 2 * count, 2)
    return Part(tuple(c for tile in tiles for c in range(16 * tile, 16 * tile + 16)), first, 2, count)


LAYERS: dict[str, tuple[Part, ...]] = {
    "o": (neighbours(0, 64),),
    "qkv": (neighbours(0, 40), neighbours(40, 60), neighbours(60, 80)),  # parts meet inside of a tile
    "gate_up": (taking_turns(0, 3), taking_turns(1, 3)),
}
WIDTHS = {"o": 64, "qkv": 80, "gate_up": 96}
RANK_OF = ((12, 3, 0), (1, 5, 12), (0, 0, 0), (7, 8, 4))  # of each part, in each slot
SLOT_OF_ROW = np.array([0, 0, -1, 3, 1, 1, 1, -1, 3, 3, 3, 3, 0, -1, 2, 2, 1, 3, 3, 0, -1])


class Case:
    """A layer of several parts and slots, in the memory of one core."""

    def __init__(self, layer: str, cell: str) -> None:
        rng = np.random.default_rng(5)
        self.parts, self.ldc, self.cell = LAYERS[layer], WIDTHS[layer], cell
        self.a = [[rounded(rng.standard_normal((r, K)) / 11, cell) for r in ranks] for ranks in self.ranks()]
        self.b = [
            [
                rounded(rng.standard_normal((len(part.columns), r)), cell)
                for part, r in zip(self.parts, ranks, strict=True)
            ]
            for ranks in self.ranks()
        ]
        size = 2 if cell == "bf16" else 4
        a_cells, b_cells = MAX_RANK * K, [part.tiles * MAX_RANK * 16 for part in self.parts]
        self.all_a = aligned((len(RANK_OF), len(self.parts), a_cells), np.uint16 if cell == "bf16" else np.float32)
        self.all_b = aligned((len(RANK_OF), sum(b_cells)), self.all_a.dtype)
        self.table = aligned((len(RANK_OF), len(self.parts), len(PartRecord._fields)), np.int64)
        for slot, ranks in enumerate(self.ranks()):
            for i, (part, rank) in enumerate(zip(self.parts, ranks, strict=True)):
                offset = sum(b_cells[:i])
                self.all_a[slot, i, : rank * K] = to_cell(self.a[slot][i], cell).reshape(-1)
                self.all_b[slot, offset : offset + part.tiles * rank * 16] = self.tiles(slot, i)
                self.table[slot, i] = PartRecord(
                    rank,
                    float_bits(self.scale(slot, i)),
                    (slot * len(self.parts) + i) * a_cells * size,
                    (slot * sum(b_cells) + offset) * size,
                    i * MAX_RANK,
                    part.first_tile,
                    part.step,
                    part.tiles,
                )

    def ranks(self) -> list[tuple[int, ...]]:
        return [ranks[: len(self.parts)] for ranks in RANK_OF]

    def scale(self, slot: int, i: int) -> float:
        return 0.5 + slot + i / 4

    def tiles(self, slot: int, i: int) -> Array:
        """Return B of one part: [tiles][rank][16]."""
        part, b = self.parts[i], self.b[slot][i]
        padded = np.zeros((part.tiles * 16, b.shape[1]), np.float32)
        begin = part.columns[0] - part.first_tile * 16
        padded[begin : begin + len(b)] = b
        return to_cell(padded.reshape(part.tiles, 16, -1).transpose(0, 2, 1).reshape(-1), self.cell)

    def delta(self, slot: int, x: Array) -> Array:
        """Return what the adapter adds to the layer's output."""
        out = np.zeros(self.ldc)
        for i, part in enumerate(self.parts):
            product = self.b[slot][i].astype(float) @ (self.a[slot][i].astype(float) @ x.astype(float))
            out[list(part.columns)] += self.scale(slot, i) * product
        return out

    def add(
        self, pool: WorkerPool, step: StepRecord, inputs: Array, form: Form, scales: Array | None, out: Array
    ) -> None:
        """Run both instructions."""
        width = len(self.parts) * MAX_RANK
        shrunk, scratch = aligned((len(out), width), np.float32), aligned((pool.num_threads, 2 * K), np.float32)
        shared = address(self.table), len(self.parts)
        shrink = ShrinkOperands(
            address(inputs),
            FORMS.index(form),
            address(scales),
            *shared,
            address(self.all_a),
            K,
            address(shrunk),
            width,
            address(scratch),
            2 * K * 4,
        )
        run(pool, SHRINK[self.cell], [shrink], step)
        expand = ExpandOperands(address(shrunk), width, *shared, address(self.all_b), address(out), self.ldc)
        run(pool, EXPAND[self.cell], [expand], step)


def grouped(slots: Array) -> tuple[Array, Array]:
    """Return the rows with an adapter, group by group, and the groups."""
    used = [int(s) for s in np.unique(slots[slots >= 0])]
    rows = np.concatenate([np.flatnonzero(slots == slot) for slot in used]).astype(np.int32)
    ends = np.cumsum([np.count_nonzero(slots == slot) for slot in used])
    groups = np.array([used, [0, *ends[:-1]], ends], np.int32).T.copy()
    return rows, groups


def step_of(rows: Array, groups: Array, num_tokens: int = ROWS) -> StepRecord:
    fields = {"num_lora_groups": len(groups), "lora_rows": address(rows), "lora_groups": address(groups)}
    return step_record(num_tokens=num_tokens, **fields)


def written(x: Array, form: Form) -> tuple[Array, Array | None, Array]:
    """Return inputs in a form, with their scales, and their values."""
    if form == "rows":
        return x, None, x
    if form == "int8":
        scales = (np.abs(x).max(1) / 127).astype(np.float32)
        codes = np.rint(x / scales[:, None])
        return to_panels(codes, "i8"), scales, codes * scales[:, None]
    if form == "int8 rotated":
        quantized = quantize_rows(x, "int8-rotated")
        panels = to_panels(quantized.codes.view(np.int8).astype(np.float32), "i8")
        return panels, quantized.scales, dequantize_rows(quantized, "int8-rotated")
    if form == "int8 chunks":
        chunks = np.zeros((32, K // 32, 32), np.float32)
        chunks[:ROWS] = x.reshape(ROWS, -1, 32)
        sides = np.zeros((32, K // 32, 2), np.float32)
        sides[..., 0] = np.abs(chunks).max(2) / 127
        codes = np.rint(chunks / np.maximum(sides[..., :1], 1e-30))
        blocks = aligned((2, K * 20), np.uint8)
        blocks[:, : 16 * K] = to_panels(codes.reshape(32, K), "i8").view(np.uint8).reshape(2, -1)
        blocks[:, 16 * K :] = sides.reshape(2, 16, -1, 2).transpose(0, 2, 1, 3).copy().view(np.uint8).reshape(2, -1)
        return blocks, None, (codes * sides[..., :1]).reshape(32, K)[:ROWS]
    cell = "bf16" if form == "bfloat16" else "f32"
    return to_panels(x, cell), None, rounded(x, cell)


@pytest.mark.parametrize("cell", SHRINK)
@pytest.mark.parametrize("layer", LAYERS)
def test_each_row_gets_its_adapters_delta_and_no_other_is_touched(pool: WorkerPool, layer: str, cell: str) -> None:
    case, rng = Case(layer, cell), np.random.default_rng(6)
    x = aligned((ROWS, K), np.float32)
    x[:] = rng.standard_normal(x.shape)
    rows, groups = grouped(SLOT_OF_ROW)
    for form in FORMS:
        inputs, scales, values = written(x, form)
        out = aligned((ROWS, case.ldc), np.float32)
        out[:] = before = rng.standard_normal(out.shape).astype(np.float32)
        case.add(pool, step_of(rows, groups), inputs, form, scales, out)
        for row, slot in enumerate(SLOT_OF_ROW):
            if slot < 0:
                assert np.array_equal(out[row], before[row])
            else:
                want = before[row] + case.delta(slot, values[row])
                assert np.abs(out[row] - want).max() <= 2e-6 * max(1.0, np.abs(want).max()), (form, row)


@pytest.mark.parametrize("cell", SHRINK)
def test_a_rows_delta_is_bit_for_bit_that_of_the_row_alone(
    pool: WorkerPool, two_threads: WorkerPool, cell: str
) -> None:
    case, x = Case("qkv", cell), aligned((ROWS, K), np.float32)
    x[:] = np.random.default_rng(7).standard_normal(x.shape)
    together, alone = (aligned((ROWS, case.ldc), np.float32) for _ in range(2))
    all_rows, all_groups = grouped(SLOT_OF_ROW)
    case.add(pool, step_of(all_rows, all_groups), x, "rows", None, together)
    for row in np.flatnonzero(SLOT_OF_ROW >= 0):
        rows, groups = np.array([row], np.int32), np.array([[SLOT_OF_ROW[row], 0, 1]], np.int32)
        case.add(two_threads, step_of(rows, groups), x, "rows", None, alone)
    assert np.array_equal(together, alone)


def test_sizes_that_placement_knows() -> None:
    assert MAX_RANK % LORA_RANKS == 0
    assert size_of(PartRecord) == LORA_PART_BYTES


PANELS = [gate_panels] if "avx512-bf16" in host_isas() else []


@pytest.mark.parametrize("kernel", [activate_rows, gate_rows, *PANELS], ids=lambda k: k.name)
@pytest.mark.parametrize("activation", range(1, len(ACTIVATIONS)))
def test_activations_by_themselves_are_those_of_products(
    two_threads: WorkerPool, kernel: Kernel, activation: int
) -> None:
    """The reference is a product with the identity; panels agree within bfloat16's precision."""
    x, is_gated = aligned((5, 64), np.float32), kernel is not activate_rows
    x[:] = 3 * np.random.default_rng(8).standard_normal(x.shape)
    step, width = step_record(num_tokens=5), 32 if is_gated else 64
    out = aligned((1, 1, 16, 32), np.uint16) if kernel is gate_panels else aligned((5, width), np.float32)
    run(two_threads, kernel, [ActivateOperands(address(x), 64, address(out), width, activation)], step)
    panels, scratch, fused = to_panels(x, "f32"), aligned((2, 1 << 14), np.uint8), aligned((5, width), np.float32)
    tiles = to_tiles(np.eye(64, dtype=np.float32), "f32")
    operands = MatmulOperands(
        activations=address(panels),
        row_scales=0,
        weights=address(tiles),
        column_scales=0,
        column_sums=0,
        output=address(fused),
        n_tiles=4,
        k_tiles=2,
        ldc=width,
        rows_field=STEP.num_tokens,
        scratch=address(scratch),
        scratch_stride=1 << 14,
        activation=activation,
    )
    kernels = linear_kernels("float32")
    run(two_threads, kernels.gated if is_gated else kernels.matmul, [operands], step)
    if kernel is gate_panels:
        assert np.abs(from_panels(out, 5) - fused).max() <= 2.0**-7 * np.abs(fused).max()
    else:
        assert np.array_equal(out, fused)
