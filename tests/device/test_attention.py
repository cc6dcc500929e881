"""Paged attention against plain softmax attention, and its independence of chunking, batch and threads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from server.device.formats import host_isas, shared_kernels
from server.device.kernels.attention_amx import attention_amx, row_tile_bytes
from server.device.kernels.attention_rows import scratch_row_bytes
from server.device.kernels.records import AttentionOperands
from server.device.layout import round_up
from server.device.workers import WorkerPool
from tests.device.kernel_bench import Array, address, aligned, rounded, run, step_record, to_cell

KERNELS = {
    "bf16": shared_kernels("bfloat16", 64, 32, "portable").attention,
    "f32": shared_kernels("float32", 64, 32).attention,
    "pairs": attention_amx,
}
CELLS = ["bf16", "f32", pytest.param("pairs", marks=pytest.mark.skipif("amx" not in host_isas(), reason="no AMX"))]


@dataclass
class Case:
    """Sequences with a shared cache; q, k, v are [context, heads, head_dim] of each."""

    cell: str
    heads: int
    kv_heads: int
    head_dim: int
    block: int
    window: int
    contexts: list[int]

    def __post_init__(self) -> None:
        rng = np.random.default_rng(sum(self.contexts) + self.head_dim)
        draw = lambda n, h: rng.standard_normal((n, h, self.head_dim)).astype(np.float32)  # noqa: E731
        self.pad = round_up(self.head_dim, 16)
        self.number = "bf16" if self.cell == "pairs" else self.cell
        self.q = [draw(n, self.heads) for n in self.contexts]
        if self.cell == "pairs":
            self.q = [rounded(q, "bf16") for q in self.q]
        self.k = [rounded(draw(n, self.kv_heads), self.number) for n in self.contexts]
        self.v = [rounded(draw(n, self.kv_heads), self.number) for n in self.contexts]
        blocks = [-(-n // self.block) for n in self.contexts]
        free = rng.permutation(sum(blocks)) + 1
        self.tables = np.split(free, np.cumsum(blocks)[:-1])
        self._fill(sum(blocks) + 1)

    def _fill(self, num_blocks: int) -> None:
        """The cache; slots that hold no token are NaN, so that touching one shows.

        In pairs they are huge but finite, as the cache itself promises: the tile unit multiplies them by zero.
        """
        unused = 1e30 if self.cell == "pairs" else np.nan
        k = np.full((num_blocks, self.kv_heads, self.pad, self.block), unused, np.float32)
        v = np.full((num_blocks, self.kv_heads, self.block, self.pad), unused, np.float32)
        for table, ks, vs in zip(self.tables, self.k, self.v, strict=True):
            for t in range(len(ks)):
                k[table[t // self.block], :, : self.head_dim, t % self.block] = ks[t]
                v[table[t // self.block], :, t % self.block, : self.head_dim] = vs[t]
                v[table[t // self.block], :, t % self.block, self.head_dim :] = 0
        self.k_cache, self.v_cache = to_cell(k, self.number), to_cell(v, self.number)
        if self.cell == "pairs":
            k_pairs = self.k_cache.reshape(num_blocks, self.kv_heads, self.pad // 2, 2, self.block)
            v_pairs = self.v_cache.reshape(num_blocks, self.kv_heads, self.block // 2, 2, self.pad)
            self.k_cache, self.v_cache = (np.ascontiguousarray(x.swapaxes(-1, -2)) for x in (k_pairs, v_pairs))

    def want(self, seq: int) -> Array:
        """[context, heads, head_dim] by the definition, in float64."""
        n, group = self.contexts[seq], self.heads // self.kv_heads
        q, k, v = (x[seq].astype(np.float64) for x in (self.q, self.k, self.v))
        scores = np.einsum("qhd,khd->hqk", q, np.repeat(k, group, axis=1))
        i, j = np.arange(n)[:, None], np.arange(n)[None, :]
        seen = (j <= i) & ((j > i - self.window) if self.window else True)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.einsum("hqk,khd->qhd", weights, np.repeat(v, group, axis=1))

    def run(self, pool: WorkerPool, parts: list[tuple[int, int, int]], tile_tokens: int = 4) -> Array:
        """Queries first..last of each (seq, first, last); [rows, heads, head_dim]."""
        q = np.concatenate([self.q[s][a:b] for s, a, b in parts])
        width = round_up(self.heads * self.head_dim, 32)
        output = np.zeros((len(q), width), np.float32)
        tables = np.zeros((len(parts), max(map(len, self.tables))), np.int32)
        for i, (s, _, _) in enumerate(parts):
            tables[i, : len(self.tables[s])] = self.tables[s]
        starts = np.cumsum([0] + [b - a for _, a, b in parts]).astype(np.int32)
        positions = np.concatenate([np.arange(a, b) for _, a, b in parts]).astype(np.int32)
        tiles = [(i, r) for i in range(len(parts)) for r in range(starts[i], starts[i + 1], tile_tokens)]
        tile_seq, tile_row = (np.array(x, np.int32) for x in zip(*tiles, strict=True))
        group, counter = self.heads // self.kv_heads, np.zeros(1, np.int64)
        groups = np.array([(j * group, (j + 1) * group) for j in range(self.kv_heads)], np.int32)
        row_tiles = round_up(tile_tokens * group, 16) // 16 * row_tile_bytes(self.pad, self.block)
        stride = max(row_tiles, round_up(tile_tokens * group, 4) * scratch_row_bytes(self.pad, self.block))
        scratch, queries = aligned((stride * pool.num_threads,), np.uint8), to_cell(q, "bf16")
        operands = AttentionOperands(
            *(address(q), self.heads * self.head_dim, address(self.k_cache), address(self.v_cache), address(output)),
            *(width, self.kv_heads, self.head_dim, self.pad, self.block, self.window, address(groups)),
            *(address(scratch), stride, tile_tokens, address(queries), self.heads * self.head_dim),
        )
        step = step_record(
            num_tokens=len(q),
            num_seqs=len(parts),
            num_tiles=len(tiles),
            positions=address(positions),
            query_start=address(starts),
            block_tables=address(tables),
            table_width=tables.shape[1],
            tile_seq=address(tile_seq),
            tile_row=address(tile_row),
            counter=address(counter),
        )
        run(pool, KERNELS[self.cell], [operands], step)
        return output[:, : self.heads * self.head_dim].reshape(-1, self.heads, self.head_dim)


SHAPES = [  # heads, kv heads, head_dim, block
    (4, 4, 64, 16),
    (14, 2, 64, 32),
    (5, 1, 80, 16),
    (6, 3, 96, 64),
    (3, 1, 8, 16),
    (2, 1, 128, 32),
    (1, 1, 256, 16),
]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "block"), SHAPES)
@pytest.mark.parametrize("window", [0, 7, 40])
def test_attention_equals_softmax(
    two_threads: WorkerPool, cell: str, heads: int, kv_heads: int, head_dim: int, block: int, window: int
) -> None:
    if cell == "pairs" and (head_dim % 32 or block % 32):
        pytest.skip("the tile unit takes heads and blocks of whole tiles")
    case = Case(cell, heads, kv_heads, head_dim, block, window, [1, block, 67])
    got = case.run(two_threads, [(s, 0, n) for s, n in enumerate(case.contexts)])
    want = np.concatenate([case.want(s) for s in range(3)])
    limit = 2.0**-7 if cell == "pairs" else 2e-5  # softmax weights are rounded to bfloat16 for the tile unit
    assert np.abs(got - want).max() <= limit * np.abs(want).max()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("window", [0, 21])
def test_a_token_is_bitwise_the_same_however_it_is_computed(pool: WorkerPool, cell: str, window: int) -> None:
    case = Case(cell, 14, 2, 64, 32, window, [90, 35])
    whole = case.run(pool, [(0, 0, 90)])
    mixed = case.run(pool, [(1, 30, 35), (0, 50, 90), (1, 0, 3)], tile_tokens=3)
    assert np.array_equal(mixed[5:45], whole[50:])
    decode = np.concatenate([case.run(pool, [(0, t, t + 1)], tile_tokens=1) for t in range(60, 90)])
    assert np.array_equal(decode, whole[60:])
