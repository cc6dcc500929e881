"""Sequences in a paged cache of any element type, and attention over them by definition and by a kernel."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from neuronserve.server.config.formats import Isa, KVCacheDtype
from neuronserve.server.device.attention_layout import (
    item_scratch_bytes,
    lanes_work_bytes,
    row_state_bytes,
    tile_work_bytes,
)
from neuronserve.server.device.layout import round_up
from neuronserve.server.engine.attention_work import AttentionWork
from neuronserve.server.engine.operands import float_bits
from neuronserve.server.kernels.dispatch import host_isas, shared_kernels
from neuronserve.server.kernels.records import AttentionOperands
from neuronserve.server.kernels.workers import WorkerPool
from neuronserve.server.placement.cache_layout import SCALE_BYTES
from neuronserve.server.types import SamplingParams, ScheduledSeq
from tests.kernels.kernel_bench import Array, address, aligned, rounded, run, step_record, to_cell, work_counters

LANES: tuple[KVCacheDtype, ...] = ("bfloat16", "float32", "int8", "fp8")
TILES: tuple[KVCacheDtype, ...] = ("bfloat16", "int8", "fp8") if "amx" in host_isas() else ()
INTEGERS: tuple[Isa, ...] = tuple(isa for isa in ("avx2", "avx512") if isa in host_isas())  # of int8 caches' products
CACHES: list[tuple[KVCacheDtype, Isa]] = [(d, "portable") for d in LANES] + [(d, "amx") for d in TILES]
CACHES += [("int8", isa) for isa in INTEGERS] + [("fp8", isa) for isa in INTEGERS if isa == "avx512"]
LARGEST: dict[KVCacheDtype, int] = {"int8": 127, "fp8": 3840}  # codes of integer products


def encoded(values: Array, dtype: KVCacheDtype) -> tuple[Array, Array]:
    """Return cells and float32 scales `[..., 1]` of heads `[..., head_dim]`, by definition."""
    if dtype in ("bfloat16", "float32"):
        return to_cell(values, "bf16" if dtype == "bfloat16" else "f32"), np.ones((*values.shape[:-1], 1), np.float32)
    scales = np.abs(values).max(-1, keepdims=True) / np.float32(127 if dtype == "int8" else 240)
    numbers = values / scales
    if dtype == "int8":
        return np.rint(numbers).astype(np.int8).view(np.uint8), scales
    codes = numbers.astype(ml_dtypes.float8_e4m3).view(np.uint8)
    return np.where(codes & 0x78, codes, 0).astype(np.uint8), scales


def int16_queries(q: Array, dtype: KVCacheDtype) -> Array:
    """Return the queries as integer products see them: whole multiples of a scale of each head; sums are int32."""
    scales = np.abs(q).max(-1, keepdims=True) / np.float32(min(32767, (2**31 - 1) // (LARGEST[dtype] * q.shape[-1])))
    return np.asarray(np.rint(q / scales) * scales, np.float32)


def decoded(cells: Array, scales: Array, dtype: KVCacheDtype) -> Array:
    types = {"bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "int8": np.int8, "fp8": ml_dtypes.float8_e4m3}
    return cells.view(types[dtype]).astype(np.float32) * scales


@dataclass
class Case:
    """Sequences with a shared cache; q, k, v are [context, heads, head_dim] of each."""

    cache: tuple[KVCacheDtype, Isa]
    heads: int
    kv_heads: int
    head_dim: int
    block: int
    window: int  # below 0: chunks
    contexts: list[int]
    cap: float = 0.0
    has_sinks: bool = False
    has_slopes: bool = False
    spans: tuple[tuple[int, int], ...] = ()  # begin and end of tokens of each sequence that see each other

    def __post_init__(self) -> None:
        rng = np.random.default_rng(sum(self.contexts) + self.head_dim)
        draw = lambda n, h: rng.standard_normal((n, h, self.head_dim)).astype(np.float32)  # noqa: E731
        (self.dtype, self.isa), self.pad = self.cache, round_up(self.head_dim, 16)
        self.q = [draw(n, self.heads) for n in self.contexts]
        if self.isa == "amx":
            self.q = [rounded(q, "bf16") for q in self.q]
        if self.isa in INTEGERS:
            self.q = [int16_queries(q, self.dtype) for q in self.q]
        k = [encoded(draw(n, self.kv_heads), self.dtype) for n in self.contexts]
        v = [encoded(draw(n, self.kv_heads), self.dtype) for n in self.contexts]
        self.k, self.v = ([decoded(*pair, self.dtype) for pair in pairs] for pairs in (k, v))
        self.sinks = rng.standard_normal(self.heads).astype(np.float32) * 3
        self.slopes = rng.uniform(0.004, 0.5, self.heads).astype(np.float32) * self.has_slopes
        blocks = [-(-n // self.block) for n in self.contexts]
        free = rng.permutation(sum(blocks)) + 1
        self.tables = np.split(free, np.cumsum(blocks)[:-1])
        self.k_cache, self.v_cache = (self._fill(pairs, sum(blocks) + 1, is_k) for pairs, is_k in ((k, 1), (v, 0)))

    def _fill(self, seqs: list[tuple[Array, Array]], num_blocks: int, is_k: int) -> Array:
        """Fill a cache [blocks, kv_heads, bytes]. Slots without a token are NaN, so that reading one shows.

        For the tile unit they are huge but finite, as the cache guarantees: it multiplies them by zero.
        """
        unused = 1e30 if self.isa == "amx" else np.nan
        cells = np.full((num_blocks, self.kv_heads, self.block, self.pad), unused, np.float32)
        is_scaled = self.dtype in ("int8", "fp8")
        held = np.full(cells.shape, 0x77, np.uint8) if is_scaled else encoded(cells, self.dtype)[0]
        scales = np.full((num_blocks, self.kv_heads, self.block), unused, np.float32)
        for table, (values, by) in zip(self.tables, seqs, strict=True):
            for t in range(len(values)):
                held[table[t // self.block], :, t % self.block] = 0
                held[table[t // self.block], :, t % self.block, : self.head_dim] = values[t]
                scales[table[t // self.block], :, t % self.block] = by[t, :, 0]
        if is_k:
            held = held.swapaxes(-1, -2)
        if self.isa in ("amx", *INTEGERS):
            pairs = held.reshape(num_blocks, self.kv_heads, held.shape[2] // 2, 2, held.shape[3])
            held = pairs.swapaxes(-1, -2)
        parts = [np.ascontiguousarray(held).reshape(num_blocks, self.kv_heads, -1).view(np.uint8)]
        parts += [scales.view(np.uint8)] * is_scaled
        assert not is_scaled or parts[1].shape[-1] == SCALE_BYTES * self.block
        whole = np.concatenate(parts, axis=-1)
        out = aligned((num_blocks, self.kv_heads + 1, whole.shape[-1]), np.uint8)  # a head of another layer follows
        out[:, : self.kv_heads], out[:, self.kv_heads :] = whole, 0xFF
        return out

    def want(self, seq: int) -> Array:
        """Return [context, heads, head_dim] by definition, in float64."""
        n, group = self.contexts[seq], self.heads // self.kv_heads
        q, k, v = (x[seq].astype(np.float64) for x in (self.q, self.k, self.v))
        scores = np.einsum("qhd,khd->hqk", q, np.repeat(k, group, axis=1))
        if self.cap:
            scores = self.cap * np.tanh(scores / self.cap)
        i, j = np.arange(n)[:, None], np.arange(n)[None, :]
        scores -= self.slopes.astype(np.float64)[:, None, None] * (i - j)
        first = i // -self.window * -self.window if self.window < 0 else i - self.window + 1 if self.window else 0
        scores = np.where((j < self.ends(np.arange(n))[:, None]) & (j >= first), scores, -np.inf)
        sinks = self.sinks.astype(np.float64)[:, None, None] if self.has_sinks else np.full((1, 1, 1), -np.inf)
        highest = np.maximum(scores.max(-1, keepdims=True), sinks)
        weights = np.exp(scores - highest)
        weights /= weights.sum(-1, keepdims=True) + np.exp(sinks - highest)
        return np.einsum("hqk,khd->qhd", weights, np.repeat(v, group, axis=1))

    def ends(self, positions: Array) -> Array:
        """Return the end of the keys that each position sees."""
        found = positions + 1
        for begin, end in self.spans:
            found[(begin <= positions) & (positions < end)] = end
        return found.astype(np.int32)

    def run(
        self, pool: WorkerPool, parts: list[tuple[int, int, int]], tile_tokens: int = 4, num_slots: int = 0
    ) -> Array:
        """Return the kernel's [rows, heads, head_dim] for queries first..last of each (seq, first, last)."""
        q = np.concatenate([self.q[s][a:b] for s, a, b in parts])
        width, group = round_up(self.heads * self.head_dim, 32), self.heads // self.kv_heads
        output = np.zeros((len(q), width), np.float32)
        tables = np.zeros((2, len(parts), max(map(len, self.tables))), np.int32)
        for i, (s, _, _) in enumerate(parts):
            tables[1, i, : len(self.tables[s])] = self.tables[s]  # of the second group of layers
        starts = np.cumsum([0] + [b - a for _, a, b in parts]).astype(np.int32)
        positions = np.concatenate([np.arange(a, b) for _, a, b in parts]).astype(np.int32)
        ends, greedy = self.ends(positions), SamplingParams(max_tokens=1)
        seqs = [ScheduledSeq(str(s), (0,) * (b - a), a, (), True, greedy, (), 1) for s, a, b in parts]
        entries = np.array(AttentionWork(tile_tokens, num_slots, 8).divide(seqs), np.int32)
        tile_seq, tile_row, split = (np.ascontiguousarray(x) for x in (entries[:, 0], entries[:, 1], entries[:, 2:]))
        groups = np.array([(j * group, (j + 1) * group) for j in range(self.kv_heads)], np.int32)
        rows, counters = tile_tokens * group, work_counters(pool)
        work = max(lanes_work_bytes(rows, self.pad), tile_work_bytes(rows, self.pad))
        stride = round_up(item_scratch_bytes(rows, self.pad) + work, 64)
        scratch, queries = aligned((stride * pool.num_threads,), np.uint8), to_cell(q, "bf16")
        scratch[:] = 0xFF  # NaN
        slots = num_slots * self.kv_heads
        partials, arrivals = aligned((slots * group * row_state_bytes(self.pad),), np.uint8), np.zeros(slots, np.int64)
        partials[:] = 0xFF
        operands = AttentionOperands(
            *(address(q), self.heads * self.head_dim, address(self.k_cache), address(self.v_cache), address(output)),
            *(width, self.kv_heads, self.head_dim, self.pad, self.block, self.window),
            *(float_bits(self.cap), address(self.sinks) if self.has_sinks else 0),
            *(address(self.slopes) if self.has_slopes else 0, address(groups)),
            *(address(scratch), stride, tile_tokens, address(queries), self.heads * self.head_dim),
            *(self.k_cache.shape[-1], self.k_cache.strides[0], round_up(rows, 16), group),
            *(address(partials), address(arrivals), 1),
            sees_ahead=int(bool(self.spans)),
        )
        step = step_record(
            num_tokens=len(q),
            num_seqs=len(parts),
            num_tiles=len(entries),
            positions=address(positions),
            query_start=address(starts),
            block_tables=address(tables),
            table_width=tables.shape[2],
            tables_stride=tables.strides[0],
            tile_seq=address(tile_seq),
            tile_row=address(tile_row),
            tile_split=address(split),
            counters=address(counters),
            ends=address(ends),
        )
        dtype = "float32" if self.dtype == "float32" else "bfloat16"
        head_dim, block = (64, 32) if self.isa == "amx" else (80, 16)
        run(pool, shared_kernels(dtype, head_dim, block, self.isa, self.dtype).attention, [operands], step)
        assert not arrivals.any()
        return output[:, : self.heads * self.head_dim].reshape(-1, self.heads, self.head_dim)
