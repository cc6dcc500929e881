"""Kernels of several streams, of inputs of layers and of activations apart from products, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.kernels import activate, layer_inputs, streams
from neuronserve.server.kernels.isa.jit import Kernel
from neuronserve.server.kernels.matmul.epilogue import ACTIVATIONS
from neuronserve.server.kernels.matmul.packing import interleave
from neuronserve.server.kernels.workers import WorkerPool
from tests.kernels.kernel_bench import Array, address, aligned, float_bits, rounded, run, step_record, to_cell

EPS = 1e-6


def filled(shape: tuple[int, ...], values: Array) -> Array:
    """Aligned memory of `shape` with `values` at the beginning of each row, and zeros behind."""
    memory = aligned(shape, np.float32)
    memory[...] = 0
    memory[..., : values.shape[-1]] = values
    return memory


class Bench:
    """Random streams of `size` elements for some tokens, and the operands of all kernels."""

    def __init__(self, rng: np.random.Generator, tokens: int, num: int, size: int) -> None:
        width = -(-size // 64) * 64
        self.tokens, self.num, self.size = tokens, num, size
        self.streams = filled((num, tokens, width), rng.standard_normal((num, tokens, size)))
        self.hidden = filled((tokens, width), rng.standard_normal((tokens, size)))
        self.branch = filled((tokens, width), rng.standard_normal((tokens, size)))
        self.norm, self.scale = (filled((width,), rng.standard_normal(size)) for _ in range(2))
        self.router = filled((num * size + 16,), rng.standard_normal(num * size) * size**0.5)
        self.mixes = filled((num**3,), rng.standard_normal(num**3))
        self.scratch = aligned((4, 1024), np.float32)

    def run(self, pool: WorkerPool, kernel: Kernel, **fields: int) -> None:
        operands = streams.StreamsOperands(
            hidden=address(self.hidden),
            streams=address(self.streams),
            stride=self.hidden.nbytes,
            num_streams=self.num,
            width=self.hidden.shape[1],
            size=self.size,
            scratch=address(self.scratch),
            scratch_stride=4096,
            norm=address(self.norm),
            eps=float_bits(EPS),
            router=address(self.router),
            mixes=address(self.mixes),
            **fields,
        )
        run(pool, kernel, [operands], step_record(num_tokens=self.tokens))

    def modes(self, rows: Array) -> Array:
        """The modes of rows [T, width], [T, num]."""
        rows = rows[:, : self.size].astype(np.float64)
        normed = rows / np.sqrt((rows**2).mean(1, keepdims=True) + EPS) * self.norm[: self.size]
        return np.tanh(normed @ self.router[: self.num * self.size].reshape(self.num, -1).T / self.size)


BENCHES = st.builds(
    lambda seed, *sizes: Bench(np.random.default_rng(seed), *sizes),
    st.integers(0, 1000),
    st.integers(1, 5),
    st.integers(2, 5),
    st.integers(3, 130),
)


@given(BENCHES)
def test_streams_are_predicted(two_threads: WorkerPool, bench: Bench) -> None:
    before, modes = bench.streams.astype(np.float64), bench.modes(bench.streams[0])
    mixes = (modes @ bench.mixes.reshape(-1, bench.num).T).reshape(-1, bench.num, bench.num)
    bench.run(two_threads, streams.predict_streams)
    want = before + np.einsum("tjk,ktw->jtw", mixes, before)
    np.testing.assert_allclose(bench.streams, want, rtol=1e-4, atol=1e-4)
    assert np.array_equal(bench.hidden, bench.streams[0])


@given(BENCHES, st.booleans())
def test_streams_are_corrected(two_threads: WorkerPool, bench: Bench, is_scaled: bool) -> None:
    before, change = bench.streams.astype(np.float64), bench.hidden - bench.streams[0].astype(np.float64)
    shares = 1 + bench.modes(bench.hidden) @ bench.mixes[: bench.num**2].reshape(bench.num, -1).T
    bench.run(two_threads, streams.correct_streams, scale=address(bench.scale) if is_scaled else 0)
    np.testing.assert_allclose(bench.streams, before + shares.T[:, :, None] * change, rtol=1e-4, atol=1e-4)
    assert np.array_equal(bench.hidden, bench.streams[0] * (bench.scale if is_scaled else np.float32(1)))


@given(BENCHES)
def test_a_branch_is_added_to_all_but_the_first(two_threads: WorkerPool, bench: Bench) -> None:
    want = bench.streams.copy()
    want[1:] += bench.branch
    bench.run(two_threads, streams.add_to_streams, branch=address(bench.branch))
    assert np.array_equal(bench.streams, want)


def as_long(rows: Array, first: Array, size: int) -> Array:
    lengths = (np.sqrt((each.astype(np.float64) ** 2).sum(-1, keepdims=True) / size) for each in (first, rows))
    wanted, own = lengths
    return rows * wanted / np.maximum(own, math.sqrt(1e-5))


@given(BENCHES, st.booleans())
def test_streams_are_made_as_long_as_the_first(two_threads: WorkerPool, bench: Bench, merges: bool) -> None:
    bench.streams[-1, 0] *= 1e-6  # shorter than the least
    first = (bench.streams[0] if merges else bench.hidden).copy()
    want = np.stack([first, *as_long(bench.streams[1:], first, bench.size)])
    bench.run(two_threads, streams.merge_streams if merges else streams.spread_streams)
    np.testing.assert_allclose(bench.streams[1:], want[1:], rtol=1e-5)
    np.testing.assert_allclose(bench.hidden, want.mean(0) if merges else first, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", ["f32", "bf16"])
def test_inputs_are_the_sum_of_a_projection_and_a_table(two_threads: WorkerPool, cell: str) -> None:
    rng, layers, size, vocab = np.random.default_rng(0), 3, 32, 100
    tokens = np.array([0, 63, 64, 99, 100, 120], np.int32)  # the table ends before the vocabulary
    table = rounded(rng.standard_normal((128, 128)), cell)
    shards, norm = (
        [to_cell(part, cell) for part in (table[:64], table[64:])],
        filled((size,), rng.standard_normal(size)),
    )
    values = filled((6, 128), rng.standard_normal((6, layers * size)))
    rows = values[:, : layers * size].reshape(6, layers, size).astype(np.float64)
    normed = rows / np.sqrt((rows**2).mean(2, keepdims=True) + 0.5) * norm
    of_table = table[np.where(tokens < vocab, tokens, 0)][:, : layers * size].reshape(6, layers, size)
    operands = [
        layer_inputs.LayerInputsOperands(
            address(part), 64, vocab, address(values), 128, address(norm), float_bits(0.5), layers, size
        )
        for part in shards
    ]
    kernel = layer_inputs.layer_inputs_f32 if cell == "f32" else layer_inputs.layer_inputs_bf16
    run(two_threads, kernel, operands, step_record(num_tokens=6, token_ids=address(tokens)))
    want = (normed + of_table * size**0.5) / 2**0.5
    np.testing.assert_allclose(values[:, : layers * size].reshape(6, layers, size), want, rtol=1e-5, atol=1e-5)


def test_activations_are_multiplied_by_the_part_of_each_core(two_threads: WorkerPool) -> None:
    rng = np.random.default_rng(0)
    inputs, activated = (
        filled((5, 256), rng.standard_normal((5, 256))),
        filled((2, 5, 64), rng.standard_normal((2, 5, 64))),
    )
    want = activated * np.stack([inputs[:, 32:96], inputs[:, 96:160]])
    operands = [
        layer_inputs.LayerInputOperands(address(activated[core]), 64, address(inputs) + (32 + 64 * core) * 4, 1024)
        for core in range(2)
    ]
    run(two_threads, layer_inputs.multiply_input, operands, step_record(num_tokens=5))
    assert np.array_equal(activated, want)


@pytest.mark.parametrize("cutoff", [-0.7, 0.0, 1.645])
def test_gates_lose_a_quantile_of_the_whole_row(two_threads: WorkerPool, cutoff: float) -> None:
    rng, size = np.random.default_rng(0), 83  # on two cores of 64 columns
    gates, ups = (filled((7, 128), 3 + rng.standard_normal((7, size))) for _ in range(2))
    sources = [
        np.ascontiguousarray(interleave(gates[:, part].T, ups[:, part].T).T) for part in (slice(0, 64), slice(64, 128))
    ]
    memory = [filled((7, 128), each) for each in sources]
    outputs = [aligned((7, 64), np.float32) for _ in range(2)]
    operands = [
        activate.ActivateOperands(
            address(source), 128, address(output), 64, ACTIVATIONS.index("silu"), float_bits(cutoff), size
        )
        for source, output in zip(memory, outputs, strict=True)
    ]
    run(two_threads, activate.sparse_gate_rows, operands, step_record(num_tokens=7))
    own = gates[:, :size].astype(np.float64)
    left = np.maximum(own - own.mean(1, keepdims=True) - cutoff * own.std(1, keepdims=True), 0)
    want = left / (1 + np.exp(-left)) * ups[:, :size]
    np.testing.assert_allclose(np.concatenate(outputs, 1)[:, :size], want, rtol=2e-5, atol=2e-5)
    assert not np.concatenate(outputs, 1)[:, size:].any()


@given(st.integers(0, 1000))
def test_xielu_is_that_of_its_paper(two_threads: WorkerPool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, numbers = filled((3, 64), 3 * rng.standard_normal((3, 64))), filled((4, 16), rng.standard_normal((4, 1)))
    rows[0, :4], numbers[3, 0] = (0.0, -1e-7, 1e-7, -80.0), -1e-6
    x, (above, below, beta, eps) = rows.astype(np.float64), numbers[:, 0].astype(np.float64)
    falling = (np.expm1(np.minimum(x, eps)) - x) * (beta + np.log1p(np.exp(below))) + beta * x
    want = np.where(x > 0, np.log1p(np.exp(above)) * x * x + beta * x, falling)
    operands = activate.XIELUOperands(address(rows), 64, *(address(each) for each in numbers))
    run(two_threads, activate.xielu_rows, [operands], step_record(num_tokens=3))
    np.testing.assert_allclose(rows, want, rtol=1e-5, atol=1e-5)
