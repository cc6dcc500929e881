"""Plain numpy oracles of state layers, and their kernels run in steps over slots of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from neuronserve.server.device.state_layout import (
    convolution_state_bytes,
    recurrence_scratch_bytes,
    recurrent_state_bytes,
)
from neuronserve.server.kernels.state.convolution import convolve
from neuronserve.server.kernels.state.records import ConvolutionOperands, RecurrenceOperands
from neuronserve.server.kernels.state.recurrence import delta_rule, mamba2
from neuronserve.server.kernels.workers import WorkerPool
from tests.kernels.kernel_bench import Array, address, aligned, float_bits, run, step_record

SLOTS = 9


def silu(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


@dataclass(frozen=True)
class Piece:
    """Rows of a sequence in a step, and its slots."""

    rows: Array  # indices in the inputs
    read: int
    write: int | Sequence[int]  # after all rows, or after each


def step_of(pieces: Sequence[Piece]) -> tuple[dict[str, int], list[Array]]:
    """Return fields of the step record, and the arrays that they point to."""
    sizes = [len(piece.rows) for piece in pieces]
    start = np.cumsum([0, *sizes]).astype(np.int32)
    read = np.array([piece.read for piece in pieces], np.int32)
    write = np.concatenate([np.broadcast_to(np.int32(piece.write), len(piece.rows)) for piece in pieces])
    fields = {"query_start": address(start), "state_read": address(read), "state_write": address(write)}
    return {**fields, "num_tokens": sum(sizes), "num_seqs": len(pieces)}, [start, read, write]


@dataclass
class Recurrence:
    """A recurrent layer on `cores` cores, with inputs of `tokens` rows. Heads are divided unevenly, the rest last."""

    kind: str
    tokens: int
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    cores: int = 1
    limits: tuple[float, float] = (0.0, np.inf)
    weights: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.heads)

        def normal(*shape: int) -> Array:
            return rng.standard_normal(shape).astype(np.float32)

        self.keys, self.queries = normal(2, self.tokens, self.key_heads, self.key_dim)
        self.values = normal(self.tokens, self.heads, self.value_dim)
        self.steps, self.strengths = normal(2, self.tokens, self.heads) * 4
        self.decays, self.bias, self.skips = normal(3, self.heads)
        size = -(-self.heads // self.cores)
        self.shares = [range(min(self.heads, c * size), min(self.heads, (c + 1) * size)) for c in range(self.cores)]
        self.slot_bytes = recurrent_state_bytes(size, self.key_dim, self.value_dim) + 64
        self.memory = [aligned((SLOTS, self.slot_bytes // 4), np.float32) for _ in range(self.cores)]
        for memory in self.memory:
            memory[:] = np.nan  # of sequences that have ended

    def oracle(self, rows: Array) -> Array:
        """Return the outputs [rows, heads, value_dim] of one sequence, in float64."""
        of = np.arange(self.heads) * self.key_heads // self.heads
        k, q, v, x, b = (
            a[rows].astype(np.float64) for a in (self.keys, self.queries, self.values, self.steps, self.strengths)
        )
        k, q, step = k[:, of], q[:, of], softplus(x + self.bias)
        rate = -np.exp(self.decays.astype(np.float64))
        if self.kind == "mamba2":
            step = np.clip(step, *self.limits)
        else:
            k, q = (each / np.sqrt((each**2).sum(-1, keepdims=True) + 1e-6) for each in (k, q))
            q = q / np.sqrt(self.key_dim)
        state, out = np.zeros((self.heads, self.key_dim, self.value_dim)), np.zeros((len(rows), *v.shape[1:]))
        for t in range(len(rows)):
            state *= np.exp(rate * step[t])[:, None, None]
            if self.kind == "mamba2":
                state += k[t, :, :, None] * (step[t, :, None] * v[t])[:, None]
                out[t] = np.einsum("hk,hkv->hv", q[t], state) + self.skips[:, None] * v[t]
            else:
                delta = v[t] - np.einsum("hk,hkv->hv", k[t], state)
                state += k[t, :, :, None] * (delta / (1 + np.exp(-b[t]))[:, None])[:, None]
                out[t] = np.einsum("hk,hkv->hv", q[t], state)
        return out

    def step(self, pool: WorkerPool, pieces: Sequence[Piece], shares: int = 0) -> list[Array]:
        """Return each piece's outputs [rows, heads, value_dim]."""
        rows, (fields, _arrays) = np.concatenate([piece.rows for piece in pieces]), step_of(pieces)
        columns = self.key_heads * self.key_dim
        scratch = aligned((pool.num_threads + shares, recurrence_scratch_bytes(self.key_dim) // 4), np.float32)
        operands, outputs = [], []
        kept: list[Array] = [scratch]
        for core, share in enumerate(self.shares):
            own = slice(share.start, share.stop)
            mixed = np.concatenate(
                [a[rows].reshape(len(rows), -1) for a in (self.queries, self.keys, self.values[:, own])], 1
            )
            gates = np.concatenate([self.steps[rows, own], self.strengths[rows, own]], 1).copy()
            of = (np.arange(self.heads) * self.key_heads // self.heads)[own].astype(np.int32)
            output = aligned((len(rows), len(share) * self.value_dim + 5), np.float32)
            per_head = [np.ascontiguousarray(a[own]) for a in (self.decays, self.bias, self.skips)]
            kept += [mixed, gates, of, *per_head]
            outputs.append(output)
            operands.append(
                RecurrenceOperands(
                    queries=address(mixed),
                    keys=address(mixed) + columns * 4,
                    values=address(mixed) + 2 * columns * 4,
                    ldc=mixed.shape[1],
                    steps=address(gates),
                    strengths=address(gates) + len(share) * 4,
                    gate_ldc=gates.shape[1],
                    decays=address(per_head[0]),
                    step_bias=address(per_head[1]),
                    skips=address(per_head[2]) if self.kind == "mamba2" else 0,
                    least_step=float_bits(self.limits[0]),
                    most_step=float_bits(self.limits[1]),
                    scale=float_bits(self.key_dim**-0.5),
                    key_heads=address(of),
                    heads=len(share),
                    max_heads=len(self.shares[0]),
                    key_dim=self.key_dim,
                    value_dim=self.value_dim,
                    output=address(output),
                    output_ldc=output.shape[1],
                    states=address(self.memory[core]) + 64,
                    slot_bytes=self.slot_bytes,
                    scratch=address(scratch),
                    scratch_stride=scratch.strides[0],
                )
            )
        run(pool, mamba2 if self.kind == "mamba2" else delta_rule, operands, step_record(**fields), shares)
        joined = np.concatenate([o[:, :-5].reshape(len(rows), -1, self.value_dim) for o in outputs], 1)
        assert all((o[:, -5:] == 0).all() for o in outputs), "written beyond the heads"
        return np.split(joined, np.cumsum([len(piece.rows) for piece in pieces])[:-1])


@dataclass
class Convolution:
    """A convolution on cores with `channels` channels each, of `tokens` rows of inputs."""

    tokens: int
    channels: Sequence[int]
    taps: int
    is_gated: bool = False
    has_bias: bool = True

    def __post_init__(self) -> None:
        rng, width = np.random.default_rng(self.taps), sum(self.channels)
        self.source, self.before, self.after = rng.standard_normal((3, self.tokens, width)).astype(np.float32)
        self.weights, self.bias = (rng.standard_normal(s).astype(np.float32) for s in ((self.taps, width), width))
        self.slot_bytes = convolution_state_bytes(max(self.channels), self.taps) + 64
        self.memory = [aligned((SLOTS, self.slot_bytes // 4), np.float32) for _ in self.channels]
        for memory in self.memory:
            memory[:] = np.nan

    def oracle(self, rows: Array) -> Array:
        x = (self.source * self.before if self.is_gated else self.source)[rows].astype(np.float64)
        padded = np.concatenate([np.zeros((self.taps - 1, x.shape[1])), x])
        out = sum(self.weights[i] * padded[i : i + len(rows)] for i in range(self.taps)) + self.bias * self.has_bias
        return np.asarray(out * self.after[rows] if self.is_gated else silu(out))

    def step(self, pool: WorkerPool, pieces: Sequence[Piece], shares: int = 0) -> list[Array]:
        rows, (fields, _arrays) = np.concatenate([piece.rows for piece in pieces]), step_of(pieces)
        operands, outputs, begin = [], [], 0
        kept: list[Array] = []
        for core, channels in enumerate(self.channels):
            own = slice(begin, begin := begin + channels)
            mixed = np.concatenate([a[rows, own] for a in (self.source, self.before, self.after)], 1)
            weights, bias = np.ascontiguousarray(self.weights[:, own]), np.ascontiguousarray(self.bias[own])
            output = aligned((len(rows), channels + 5), np.float32)
            kept += [mixed, weights, bias]
            outputs.append(output)
            operands.append(
                ConvolutionOperands(
                    source=address(mixed),
                    before=(address(mixed) + channels * 4) * self.is_gated,
                    after=(address(mixed) + 2 * channels * 4) * self.is_gated,
                    source_ldc=mixed.shape[1],
                    weights=address(weights),
                    bias=address(bias) * self.has_bias,
                    has_silu=int(not self.is_gated),
                    taps=self.taps,
                    channels=channels,
                    max_channels=max(self.channels),
                    output=address(output),
                    output_ldc=output.shape[1],
                    states=address(self.memory[core]) + 64,
                    slot_bytes=self.slot_bytes,
                )
            )
        run(pool, convolve, operands, step_record(**fields), shares)
        assert all((o[:, -5:] == 0).all() for o in outputs), "written beyond the channels"
        joined = np.concatenate([o[:, :-5] for o in outputs], 1)
        return np.split(joined, np.cumsum([len(piece.rows) for piece in pieces])[:-1])
