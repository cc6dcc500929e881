"""Kernels of latent attention against numpy: keys and values of every head, expanded from the latents by definition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from neuronserve.server.config.formats import Dtype, KVCacheDtype
from neuronserve.server.device.attention_layout import item_scratch_bytes, lanes_work_bytes, row_state_bytes
from neuronserve.server.device.layout import round_up
from neuronserve.server.engine.attention_work import AttentionWork
from neuronserve.server.kernels.latent.attention import KERNELS
from neuronserve.server.kernels.latent.heads import QUERIES, VALUES, WRITES
from neuronserve.server.kernels.latent.records import LatentOperands
from neuronserve.server.kernels.records import AttentionOperands
from neuronserve.server.kernels.workers import WorkerPool
from neuronserve.server.types import SamplingParams, ScheduledSeq
from tests.kernels.kernel_bench import (
    Array,
    address,
    aligned,
    float_bits,
    rounded,
    run,
    step_record,
    to_cell,
    work_counters,
)

EPS, SCALE = 1e-6, 0.3
LIMITS: dict[KVCacheDtype, float] = {"float32": 2e-6, "bfloat16": 0.01, "int8": 0.02, "fp8": 0.08}


@dataclass
class Case:
    """A layer of latent attention over sequences, with seeded weights; two cores hold copies of the same heads."""

    cache: KVCacheDtype
    heads: int
    rank: int
    rotary: int
    size: int
    value_size: int
    contexts: list[int]
    is_interleaved: bool = True
    block: int = 16

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.heads + self.rank)
        self.cell = "f32" if self.cache == "float32" else "bf16"
        self.norm = aligned((self.rank,), np.float32)
        self.norm[:] = rng.uniform(0.5, 1.5, self.rank)
        shape = (self.heads, self.size + self.value_size, self.rank)
        self.weights = rounded(rng.standard_normal(shape) / 4, self.cell)
        self.latents = [rng.standard_normal((n, self.rank + self.rotary)).astype(np.float32) for n in self.contexts]
        width = self.heads * (self.size + self.rotary)
        self.queries = [rng.standard_normal((n, width)).astype(np.float32) for n in self.contexts]
        angles = np.outer(np.arange(max(self.contexts)), 0.7 ** np.arange(self.rotary // 2))
        self.cos, self.sin = (aligned(angles.shape, np.float32) for _ in range(2))
        self.cos[:], self.sin[:] = np.cos(angles), np.sin(angles)
        self.pad = round_up(self.rank + self.rotary, 16)
        blocks = [-(-n // self.block) for n in self.contexts]
        self.tables = np.split(rng.permutation(sum(blocks)) + 1, np.cumsum(blocks)[:-1])
        cell = {"float32": 4, "bfloat16": 2}.get(self.cache, 1)
        self.block_bytes = self.block * (self.pad * cell + (4 if cell == 1 else 0))
        self.caches = [aligned((sum(blocks) + 1, self.block_bytes), np.uint8) for _ in range(2)]
        for each in self.caches:
            each[:] = 0xFF  # NaN, so that reading a slot without a token shows

    def _rotated(self, x: Array, positions: Array) -> Array:
        cos, sin = self.cos[positions].astype(np.float64), self.sin[positions].astype(np.float64)
        cos, sin = (each.reshape(len(positions), *[1] * (x.ndim - 2), -1) for each in (cos, sin))
        if self.is_interleaved:
            a, b = x[..., ::2], x[..., 1::2]
            return np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def want(self, seq: int) -> Array:
        """Return the values [context, heads, value_size] by definition, in float64."""
        n = self.contexts[seq]
        at = np.arange(n)
        latent, turned = np.split(self.latents[seq].astype(np.float64), [self.rank], 1)
        latent = latent / np.sqrt((latent**2).mean(1, keepdims=True) + EPS) * self.norm
        keys, values = np.split(np.einsum("hdr,tr->thd", self.weights, latent), [self.size], 2)
        turned = np.broadcast_to(self._rotated(turned, at)[:, None], (n, self.heads, self.rotary))
        keys = np.concatenate([keys, turned], 2)
        q = self.queries[seq].astype(np.float64).reshape(n, self.heads, -1)
        q = np.concatenate([q[..., : self.size], self._rotated(q[..., self.size :], at)], 2)
        scores = np.where(at[:, None] >= at, np.einsum("thd,shd->hts", q, keys) * SCALE, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), values))

    def run(self, pool: WorkerPool, parts: list[tuple[int, int, int]], num_slots: int = 0) -> Array:
        """Return the values [rows, heads, value_size] of tokens first..last of each (seq, first, last)."""
        dtype: Dtype = "float32" if self.cell == "f32" else "bfloat16"
        tile_tokens, rows = 4, 4 * self.heads
        latent_width = self.pad
        total = sum(b - a for _, a, b in parts)
        latent = aligned((total, latent_width), np.float32)
        latent[:, : self.rank + self.rotary] = np.concatenate([self.latents[s][a:b] for s, a, b in parts])
        query = np.concatenate([self.queries[s][a:b] for s, a, b in parts])
        weight_width = round_up(self.rank, 64)
        weights = np.zeros((self.heads, self.size + self.value_size, weight_width), np.float32)
        weights[..., : self.rank] = self.weights
        cells = aligned(weights.shape, np.float32 if self.cell == "f32" else np.uint16)
        cells[:] = to_cell(weights, self.cell)
        absorbed = aligned((2, total, self.heads * self.pad), np.float32)
        values = aligned((2, total, self.heads * self.value_size + 3), np.float32)
        both = [query.copy(), query.copy()]
        latents = [
            LatentOperands(
                *(address(latent), latent_width, address(self.norm), float_bits(EPS), self.rank, self.rotary, self.pad),
                *(address(self.cos), address(self.sin), int(self.is_interleaved), address(self.caches[core])),
                *(self.block, self.block_bytes, 1, self.heads, address(both[core]), query.shape[1], self.size),
                *(address(cells), weight_width, float_bits(SCALE), address(absorbed[core]), self.value_size),
                *(address(values[core]), values.shape[2]),
            )
            for core in range(2)
        ]
        table = np.zeros((2, len(parts), max(map(len, self.tables))), np.int32)
        for i, (s, _, _) in enumerate(parts):
            table[1, i, : len(self.tables[s])] = self.tables[s]  # of the second group of layers
        starts = np.cumsum([0] + [b - a for _, a, b in parts]).astype(np.int32)
        positions = np.concatenate([np.arange(a, b) for _, a, b in parts]).astype(np.int32)
        slots = np.zeros((2, total), np.int32)
        slots[1] = np.concatenate(
            [
                self.tables[s][np.arange(a, b) // self.block] * self.block + np.arange(a, b) % self.block
                for s, a, b in parts
            ]
        )
        greedy = SamplingParams(max_tokens=1)
        seqs = [ScheduledSeq(str(s), (0,) * (b - a), a, (), True, greedy, (), 1) for s, a, b in parts]
        entries = np.array(AttentionWork(tile_tokens, num_slots, 8).divide(seqs), np.int32)
        tile_seq, tile_row, split = (np.ascontiguousarray(x) for x in (entries[:, 0], entries[:, 1], entries[:, 2:]))
        groups, counters = np.array([(0, self.heads)], np.int32), work_counters(pool)
        stride = round_up(item_scratch_bytes(rows, self.pad) + lanes_work_bytes(rows, self.pad), 64)
        scratch = aligned((stride * pool.num_threads,), np.uint8)
        scratch[:] = 0xFF  # NaN
        partials = aligned((2 * num_slots * self.heads * row_state_bytes(self.pad),), np.uint8)
        arrivals = np.zeros(2 * num_slots, np.int64)
        shared = {
            "ldc": self.heads * self.pad,
            "output_width": self.heads * self.pad,
            "kv_heads": 1,
            "head_dim": self.pad,
            "head_pad": self.pad,
            "block_size": self.block,
            "groups": address(groups),
            "scratch": address(scratch),
            "scratch_stride": stride,
            "tile_tokens": tile_tokens,
            "block_bytes": self.block_bytes,
            "block_stride": self.block_bytes,
            "state_rows": round_up(rows, 16),
            "max_group": self.heads,
            "partials": address(partials),
            "arrivals": address(arrivals),
            "kv_group": 1,
        }
        attention = [
            AttentionOperands(
                **{
                    **dict.fromkeys(AttentionOperands._fields, 0),
                    **shared,
                    **dict.fromkeys(("qkv", "output"), address(absorbed[core])),
                    **dict.fromkeys(("k_cache", "v_cache"), address(self.caches[core])),
                }
            )
            for core in range(2)
        ]
        step = step_record(
            num_tokens=total,
            num_seqs=len(parts),
            num_tiles=len(entries),
            positions=address(positions),
            slots=address(slots),
            slots_stride=slots.strides[0],
            query_start=address(starts),
            block_tables=address(table),
            table_width=table.shape[2],
            tables_stride=table.strides[0],
            tile_seq=address(tile_seq),
            tile_row=address(tile_row),
            tile_split=address(split),
            counters=address(counters),
        )
        run(pool, WRITES[self.cache], latents, step)
        run(pool, QUERIES[dtype], latents, step)
        run(pool, KERNELS[self.cache], attention, step)
        run(pool, VALUES[dtype], latents, step)
        assert np.array_equal(values[0], values[1], equal_nan=True)
        assert not arrivals.any()
        return values[0, :, : self.heads * self.value_size].reshape(total, self.heads, self.value_size)


SIZES = [(3, 24, 8, 12, 10), (5, 40, 6, 9, 7), (7, 64, 16, 16, 33), (1, 16, 2, 1, 1)]


@pytest.mark.parametrize("cache", LIMITS)
@pytest.mark.parametrize("sizes", SIZES)
def test_values_are_those_of_expanded_keys_and_values(
    two_threads: WorkerPool, cache: KVCacheDtype, sizes: tuple[int, int, int, int, int]
) -> None:
    case = Case(cache, *sizes, contexts=[33, 1, 20], is_interleaved=sizes[0] != 5)
    got = case.run(two_threads, [(0, 0, 33), (1, 0, 1), (2, 0, 20)])
    want = np.concatenate([case.want(s) for s in range(3)])
    assert np.abs(got - want).max() <= LIMITS[cache] * np.abs(want).max()


@pytest.mark.parametrize("cache", ["float32", "bfloat16", "int8"])
def test_a_row_depends_on_neither_chunks_nor_other_rows(two_threads: WorkerPool, cache: KVCacheDtype) -> None:
    """Chunks of 1 and 7 tokens, beside another sequence, over a context that several items divide."""
    case = Case(cache, 3, 24, 8, 12, 10, contexts=[600, 30])
    whole = case.run(two_threads, [(0, 0, 600)])
    case.run(two_threads, [(1, 0, 23)])
    for first, last in ((580, 587), (587, 588), (588, 595), (599, 600)):
        for num_slots in (0, 8):
            got = case.run(two_threads, [(1, 23, 30), (0, first, last)], num_slots)
            assert np.array_equal(got[7:], whole[first:last])


def test_a_latent_that_is_no_number_spoils_its_readers_alone(two_threads: WorkerPool) -> None:
    case = Case("bfloat16", 3, 24, 8, 12, 10, contexts=[20, 20])
    case.latents[0][10, 3] = np.nan
    first, second = np.split(case.run(two_threads, [(0, 0, 8), (1, 0, 20)]), [8])
    assert np.isfinite(first).all()
    assert np.isfinite(second).all()
    later = case.run(two_threads, [(0, 8, 20), (1, 19, 20)])
    assert np.isnan(later[2:12]).all()
    assert np.array_equal(later[12], second[19])
