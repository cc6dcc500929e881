"""Layers that keep a state: convolution, gated delta rule, Mamba-2 and gated norms against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from neuronserve.server.kernels.state.gated_norm import gated_norm
from neuronserve.server.kernels.state.records import GatedNormOperands
from neuronserve.server.kernels.workers import WorkerPool
from tests.kernels.kernel_bench import Array, address, aligned, float_bits, run, step_record
from tests.kernels.state_case import Convolution, Piece, Recurrence, silu

TOKENS = 72
CASES = {
    "delta": Recurrence("delta", TOKENS, heads=4, key_heads=2, key_dim=32, value_dim=128, cores=2),
    "delta-odd": Recurrence("delta", TOKENS, heads=7, key_heads=7, key_dim=5, value_dim=23, cores=3),
    "delta-wide": Recurrence("delta", TOKENS, heads=3, key_heads=1, key_dim=24, value_dim=80),
    "mamba2": Recurrence("mamba2", TOKENS, heads=4, key_heads=2, key_dim=16, value_dim=64, cores=2),
    "mamba2-odd": Recurrence("mamba2", TOKENS, heads=5, key_heads=1, key_dim=7, value_dim=9, limits=(0.1, 2.0)),
    "mamba2-wide": Recurrence("mamba2", TOKENS, heads=3, key_heads=3, key_dim=40, value_dim=80, cores=4),
    "convolution": Convolution(TOKENS, (96, 96), taps=4),
    "convolution-odd": Convolution(TOKENS, (83, 7), taps=3, has_bias=False),
    "convolution-gated": Convolution(TOKENS, (130,), taps=3, is_gated=True),
    "convolution-long": Convolution(TOKENS, (17,), taps=64),
    "convolution-short": Convolution(TOKENS, (16, 15), taps=2),
}
by_case = pytest.mark.parametrize("name", CASES)


def _whole(pool: WorkerPool, name: str, rows: Array) -> Array:
    return CASES[name].step(pool, [Piece(rows, 0, 1)])[0]


@by_case
def test_a_prompt_is_computed_as_numpy_does(pool: WorkerPool, name: str) -> None:
    rows = np.arange(TOKENS)
    want = CASES[name].oracle(rows)
    assert np.allclose(_whole(pool, name, rows), want, rtol=1e-5, atol=2e-6 * np.abs(want).max())


@by_case
@pytest.mark.parametrize("chunk", [1, 7, 32, 64])
def test_chunks_leave_every_bit(two_threads: WorkerPool, name: str, chunk: int) -> None:
    rows = np.arange(TOKENS)
    want, got = _whole(two_threads, name, rows), []
    for begin in range(0, TOKENS, chunk):
        got += CASES[name].step(two_threads, [Piece(rows[begin : begin + chunk], 3 * (begin > 0), 3)])
    assert np.array_equal(np.concatenate(got), want)


@by_case
def test_other_sequences_of_the_step_change_no_bit(pool: WorkerPool, name: str) -> None:
    layer = CASES[name]
    first, second, third = np.arange(40), np.arange(40, 60), np.arange(60, TOKENS)
    want = [_whole(pool, name, rows) for rows in (first, second, third)]
    begun = layer.step(pool, [Piece(first[:33], 0, 2), Piece(second[:1], 0, 5)])
    ended = layer.step(pool, [Piece(second[1:], 5, 4), Piece(third, 0, 6), Piece(first[33:34], 2, 2)])
    last = layer.step(pool, [Piece(first[34:], 2, 7)])[0]
    assert np.array_equal(np.concatenate([begun[0], ended[2], last]), want[0])
    assert np.array_equal(np.concatenate([begun[1], ended[0]]), want[1])
    assert np.array_equal(ended[1], want[2])


@by_case
def test_a_snapshot_is_continued_several_times(two_threads: WorkerPool, name: str) -> None:
    layer, rows = CASES[name], np.arange(TOKENS)
    begun = [rows[:20], rows[20:50], rows[50:], rows[20:21]]
    want = [_whole(two_threads, name, np.concatenate([rows[:20], branch]))[20:] for branch in begun[1:]]
    layer.step(two_threads, [Piece(begun[0], 0, 1)])
    kept = [memory[1].copy() for memory in layer.memory]
    got = layer.step(two_threads, [Piece(branch, 1, 2 + i) for i, branch in enumerate(begun[1:])])
    assert all(np.array_equal(a, memory[1], equal_nan=True) for a, memory in zip(kept, layer.memory, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(got, want, strict=True))


@by_case
@pytest.mark.parametrize("last", [1, 8], ids=["in-place", "elsewhere"])
@pytest.mark.parametrize("begins", [0, 1, 20])
def test_a_row_of_drafts_keeps_the_state_after_each_token(pool: WorkerPool, name: str, last: int, begins: int) -> None:
    layer, rows, slots = CASES[name], np.arange(begins + 5), [5, 2, 3, 4, last]
    if begins:
        layer.step(pool, [Piece(rows[:begins], 0, 1)])
    row, other = Piece(rows[begins:], int(begins > 0), slots), Piece(rows[:3], 0, 7)
    got = layer.step(pool, [row, other])[0]
    states = [[memory[slot].copy() for memory in layer.memory] for slot in slots]
    want = []
    for i, begin in enumerate(range(begins, begins + 5)):  # one token at a time, in another slot
        before = [Piece(rows[:begins], 0, 6)] if begins and not i else []
        for piece in (*before, Piece(rows[begin : begin + 1], 6 * (begin > 0), 6)):
            last_output = layer.step(pool, [piece])[0]
        want.append(last_output)
        after = [memory[6] for memory in layer.memory]
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(states[i], after, strict=True)), f"token {i}"
    assert np.array_equal(got, np.concatenate(want))


@pytest.mark.parametrize("name", [name for name, layer in CASES.items() if len(layer.memory) == 1])
def test_shares_of_rows_compute_whole_sequences(two_threads: WorkerPool, name: str) -> None:
    layer, count = CASES[name], 7
    pieces = [Piece(np.arange(i, i + 1), 0, 1 + i) for i in range(count)]
    want = layer.step(two_threads, pieces)
    assert np.array_equal(layer.step(two_threads, pieces, shares=3), want)


@pytest.mark.parametrize("steps", [-80.0, -20.0, -1e-3, 0.0, 1e-3, 20.0, 80.0])
@pytest.mark.parametrize("kind", ["delta", "mamba2"])
def test_extreme_steps_are_as_exact(two_threads: WorkerPool, kind: str, steps: float) -> None:
    layer = Recurrence(kind, 4, heads=3, key_heads=3, key_dim=16, value_dim=16)
    layer.steps[:] = steps
    want = layer.oracle(np.arange(4))
    got = layer.step(two_threads, [Piece(np.arange(4), 0, 1)])[0]
    assert np.allclose(got, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())


ROWS, EPS = 11, 1e-5


def _norm(pool: WorkerPool, x: Array, z: Array, operands: list[dict[str, int]]) -> Array:
    """Return the output for columns that are divided equally among the cores of `operands`."""
    columns = x.shape[1] // len(operands)
    parts = [
        np.concatenate([each[:, c * columns : (c + 1) * columns] for each in (x, z)], 1) for c in range(len(operands))
    ]
    outputs = [aligned((ROWS, columns + 3), np.float32) for _ in operands]
    records = [
        GatedNormOperands(
            source=address(part),
            source_ldc=part.shape[1],
            gates=address(part) + columns * 4,
            gates_ldc=part.shape[1],
            eps=float_bits(EPS),
            output=address(output),
            output_ldc=output.shape[1],
            **own,
        )
        for part, output, own in zip(parts, outputs, operands, strict=True)
    ]
    run(pool, gated_norm, records, step_record(num_tokens=ROWS))
    assert all((output[:, -3:] == 0).all() for output in outputs)
    return np.concatenate([output[:, :-3] for output in outputs], 1)


def _wanted(x: Array, z: Array, weight: Array | None, size: int, is_gate_first: bool) -> Array:
    x, z = x.astype(np.float64), z.astype(np.float64)
    if weight is None:
        return x * silu(z)
    y = (x * silu(z) if is_gate_first else x).reshape(ROWS, -1, size)
    y = (y / np.sqrt((y**2).mean(-1, keepdims=True) + EPS)).reshape(ROWS, -1) * weight
    return np.asarray(y if is_gate_first else y * silu(z))


def _inputs(columns: int) -> tuple[Array, Array, Array]:
    x, z = np.random.default_rng(columns).standard_normal((2, ROWS, columns)).astype(np.float32)
    return x, z, np.random.default_rng(1).standard_normal(columns).astype(np.float32)


@pytest.mark.parametrize(("groups", "size"), [(1, 96), (4, 24), (3, 35)])
@pytest.mark.parametrize("is_gate_first", [False, True])
@pytest.mark.parametrize("shares_weight", [False, True])
@pytest.mark.parametrize("cores", [1, 2])
def test_groups_within_cores_are_normed(
    pool: WorkerPool, groups: int, size: int, is_gate_first: bool, shares_weight: bool, cores: int
) -> None:
    x, z, weight = _inputs(groups * size * cores)
    if shares_weight:
        weight = np.tile(weight[:size], groups * cores)
    own = {
        "weight_stride": 0 if shares_weight else size * 4,
        "groups": groups,
        "max_groups": groups,
        "columns": size,
        "size": size,
        "group_cores": 1,
        "is_gate_first": int(is_gate_first),
    }
    at = [address(weight) + (0 if shares_weight else core * groups * size * 4) for core in range(cores)]
    got = _norm(pool, x, z, [{**own, "weight": each} for each in at])
    assert np.allclose(got, _wanted(x, z, weight, size, is_gate_first), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_gate_first", [False, True])
@pytest.mark.parametrize(("cores", "group_cores"), [(2, 2), (4, 2)])
def test_a_group_may_span_cores(pool: WorkerPool, is_gate_first: bool, cores: int, group_cores: int) -> None:
    x, z, weight = _inputs(29 * cores)
    own = {
        "weight_stride": 0,
        "groups": 1,
        "max_groups": 1,
        "columns": 29,
        "size": 29 * group_cores,
        "group_cores": group_cores,
        "is_gate_first": int(is_gate_first),
    }
    got = _norm(pool, x, z, [{**own, "weight": address(weight) + core * 29 * 4} for core in range(cores)])
    assert np.allclose(got, _wanted(x, z, weight, 29 * group_cores, is_gate_first), rtol=1e-5, atol=1e-6)


def test_without_a_weight_there_is_a_gate_alone(pool: WorkerPool) -> None:
    x, z, _ = _inputs(50)
    own = {
        "weight": 0,
        "weight_stride": 0,
        "groups": 1,
        "max_groups": 1,
        "columns": 50,
        "size": 50,
        "group_cores": 1,
        "is_gate_first": 1,
    }
    assert np.allclose(_norm(pool, x, z, [own]), _wanted(x, z, None, 50, True), rtol=1e-5, atol=1e-6)
