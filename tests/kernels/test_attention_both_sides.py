"""Attention over whole texts against plain softmax attention, and its independence of the batch and of threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from neuronserve.server.device.attention_layout import CHUNK, TEXT_WORK_BYTES, item_scratch_bytes, lanes_work_bytes
from neuronserve.server.device.layout import round_up
from neuronserve.server.kernels.attention.both_sides import attention_both_sides_bf16, attention_both_sides_f32
from neuronserve.server.kernels.records import BothSidesOperands
from neuronserve.server.kernels.workers import WorkerPool
from tests.depth import thorough
from tests.kernels.kernel_bench import Array, address, aligned, from_cell, run, step_record, to_cell, work_counters

Cell = Literal["bf16", "f32"]
KERNELS = {"bf16": attention_both_sides_bf16, "f32": attention_both_sides_f32}
LONGEST = 200
LENGTHS = (1, 16, 67, 5, LONGEST)
SHAPES = [  # heads, kv heads, head_dim, block, tile tokens
    (4, 4, 32, 64, 64),
    (6, 2, 24, 32, 4),
    (3, 1, 80, 16, 5),
    (3, 3, 11, 32, 64),
]


@dataclass(frozen=True)
class Texts:
    """q, k and v `[tokens, heads, head_dim]` of each text, and an optional bias by head and distance."""

    shape: tuple[int, int, int, int, int]
    cell: Cell
    reach: int = 0
    has_bias: bool = False
    has_rows: bool = False

    def draw(self, text: int, what: int, heads: int) -> Array:
        rng = np.random.default_rng((text, what))
        return rng.standard_normal((LENGTHS[text], heads, self.shape[2])).astype(np.float32)

    def parts(self, text: int) -> tuple[Array, Array, Array]:
        heads, kv_heads = self.shape[:2]
        q, k, v = (self.draw(text, what, n) for what, n in enumerate((heads, kv_heads, kv_heads)))
        return q, from_cell(to_cell(k, self.cell)), from_cell(to_cell(v, self.cell))

    @property
    def bias(self) -> Array:
        """[heads, 2 * LONGEST + CHUNK], distance 0 at LONGEST."""
        table = np.random.default_rng(9).standard_normal((self.shape[0], 2 * LONGEST + CHUNK)).astype(np.float32)
        return table * np.float32(self.has_bias)

    def rows(self, what: int) -> Array:
        """Keys or queries by distance, [heads, 2 * LONGEST + CHUNK, head_dim]."""
        rng, size = np.random.default_rng((9, what)), (self.shape[0], 2 * LONGEST + CHUNK, self.shape[2])
        return rng.standard_normal(size).astype(np.float32) * np.float32(self.has_rows)

    def want(self, text: int) -> Array:
        """Return the result by definition, in float64."""
        heads, kv_heads = self.shape[:2]
        q, k, v = (each.astype(np.float64) for each in self.parts(text))
        k, v = (np.repeat(each, heads // kv_heads, axis=1) for each in (k, v))
        distance = np.arange(len(q))[None, :] - np.arange(len(q))[:, None]
        scores = np.einsum("qhd,khd->hqk", q, k) + self.bias[:, LONGEST + distance]
        scores += np.einsum("qhd,hqkd->hqk", q, self.rows(0)[:, LONGEST + distance])
        scores += np.einsum("khd,hqkd->hqk", k, self.rows(1)[:, LONGEST + distance])
        if self.reach:
            scores = np.where(np.abs(distance) <= self.reach, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)

    def run(self, pool: WorkerPool, texts: list[int]) -> list[Array]:
        """Return the kernel's `[tokens, heads, head_dim]` of each text, all in one step."""
        heads, kv_heads, head_dim, block, tile_tokens = self.shape
        pad, lengths = round_up(head_dim, 16), [LENGTHS[text] for text in texts]
        counts = [-(-n // block) for n in lengths]
        starts = np.cumsum([0, *lengths]).astype(np.int32)
        tables = (1 + np.cumsum([0, *counts])[:-1]).astype(np.int32)
        q = np.concatenate([self.parts(text)[0] for text in texts])
        k, v = (self._blocks(texts, what, sum(counts) + 1) for what in (1, 2))
        k = np.ascontiguousarray(k.swapaxes(-1, -2))
        tiles = [(i, row) for i in range(len(texts)) for row in range(starts[i], starts[i + 1], tile_tokens)]
        tile_seq, tile_row = (np.array(each, np.int32) for each in zip(*tiles, strict=True))
        group, width, bias = heads // kv_heads, round_up(heads * head_dim, 32), self.bias
        groups = np.array([(j * group, (j + 1) * group) for j in range(kv_heads)], np.int32)
        rows = tile_tokens * group
        stride = round_up(item_scratch_bytes(rows, pad) + max(lanes_work_bytes(rows, pad), TEXT_WORK_BYTES), 64)
        scratch, output = aligned((stride * pool.num_threads,), np.uint8), np.full((len(q), width), np.nan, np.float32)
        scratch[:] = 0xFF  # NaN
        counters = work_counters(pool)
        keys, queries = np.ascontiguousarray(self.rows(0).swapaxes(1, 2)), self.rows(1)
        operands = BothSidesOperands(
            qkv=address(q),
            ldc=heads * head_dim,
            k_cache=address(k),
            v_cache=address(v),
            output=address(output),
            output_width=width,
            kv_heads=kv_heads,
            head_dim=head_dim,
            head_pad=pad,
            block_size=block,
            block_bytes=k[0, 0].nbytes,
            block_stride=k[0].nbytes,
            reach=self.reach,
            groups=address(groups),
            scratch=address(scratch),
            scratch_stride=stride,
            tile_tokens=tile_tokens,
            state_rows=round_up(tile_tokens * group, 16),
            bias=address(bias) if self.has_bias else 0,
            bias_stride=bias.shape[1],
            bias_middle=LONGEST,
            distance_keys=address(keys) if self.has_rows else 0,
            distance_queries=address(queries) if self.has_rows else 0,
        )
        step = step_record(
            num_tokens=len(q),
            num_seqs=len(texts),
            num_tiles=len(tiles),
            query_start=address(starts),
            block_tables=address(tables),
            table_width=1,
            tile_seq=address(tile_seq),
            tile_row=address(tile_row),
            counters=address(counters),
        )
        run(pool, KERNELS[self.cell], [operands], step)
        rows = output[:, : heads * head_dim].reshape(-1, heads, head_dim)
        return np.split(rows, starts[1:-1])

    def _blocks(self, texts: list[int], what: int, num_blocks: int) -> Array:
        """Return [blocks, kv_heads, block, pad]; slots without a token are NaN, so that reading one shows."""
        _, kv_heads, head_dim, block, _ = self.shape
        out = np.full((num_blocks, kv_heads, block, round_up(head_dim, 16)), np.nan, np.float32)
        first = 1
        for text in texts:
            values = self.parts(text)[what]
            for t, value in enumerate(values):
                out[first + t // block, :, t % block] = 0
                out[first + t // block, :, t % block, :head_dim] = value
            first += -(-len(values) // block)
        return to_cell(out, self.cell)


@pytest.mark.parametrize("shape", [SHAPES[0], *(thorough(shape) for shape in SHAPES[1:-1]), SHAPES[-1]], ids=str)
@pytest.mark.parametrize("cell", ["bf16", "f32"])
@pytest.mark.parametrize(("reach", "has_bias"), [(0, False), (7, False), (40, False), (0, True)])
def test_it_equals_softmax(
    two_threads: WorkerPool, shape: tuple[int, int, int, int, int], cell: Cell, reach: int, has_bias: bool
) -> None:
    texts = Texts(shape, cell, reach, has_bias)
    for text, got in enumerate(texts.run(two_threads, list(range(len(LENGTHS))))):
        want = texts.want(text)
        assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[-1], (5, 5, 9, 16, 7)], ids=str)
@pytest.mark.parametrize("cell", ["bf16", "f32"])
def test_rows_by_distance(two_threads: WorkerPool, shape: tuple[int, int, int, int, int], cell: Cell) -> None:
    texts = Texts(shape, cell, has_rows=True)
    for text, got in enumerate(texts.run(two_threads, list(range(len(LENGTHS))))):
        want = texts.want(text)
        assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()


@pytest.mark.parametrize("cell", ["bf16", "f32"])
@pytest.mark.parametrize(("reach", "has_bias", "has_rows"), [(0, True, False), (40, False, False), (0, False, True)])
def test_a_text_is_bitwise_the_same_alone_and_among_others(
    pool: WorkerPool, cell: Cell, reach: int, has_bias: bool, has_rows: bool
) -> None:
    texts = Texts(SHAPES[0] if has_rows else SHAPES[1], cell, reach, has_bias, has_rows)
    alone = [texts.run(pool, [text])[0] for text in range(len(LENGTHS))]
    order = [3, 4, 0, 2, 2, 1]
    for text, got in zip(order, texts.run(pool, order), strict=True):
        assert np.array_equal(got, alone[text])
