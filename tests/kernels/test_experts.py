"""Kernels of experts against numpy: choices and their order, products of groups of rows, and the sum at the end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronserve.server.config.formats import Isa, WeightFormat
from neuronserve.server.device.layout import GROUP_ROWS, round_up
from neuronserve.server.kernels.dispatch import ExpertKernels
from neuronserve.server.kernels.experts.records import CombineOperands, GroupOperands, RouteOperands, WeighOperands
from neuronserve.server.kernels.experts.route import ROUTINGS
from neuronserve.server.kernels.matmul.packing import interleave
from neuronserve.server.kernels.pack import pack_rows_bf16, pack_rows_i8
from neuronserve.server.kernels.records import PackOperands
from neuronserve.server.kernels.workers import WorkerPool
from tests.depth import representative
from tests.kernels.kernel_bench import Array, address, aligned, from_panels, rounded, run, step_record
from tests.kernels.test_matmul import Inputs, Product, Shard, cases, gated, kernels_of, multiply, operands_of, output_of

KERNELS = ExpertKernels()


class Choices(NamedTuple):
    """Result of routing."""

    chosen: Array  # [T, K]
    weights: Array  # [T, K]
    gates: Array  # [T]
    slots: Array  # [T, K]
    groups: Array  # [count, 3]: expert, first row, row after the last


def routed(pool: WorkerPool, logits: Array, experts: int, per_token: int, routing: str, **choice: int) -> Choices:
    """Run the routing of `logits` [T, experts + 1]; the last column is the gate's. `choice`: fields of operands."""
    rows, width = len(logits), round_up(logits.shape[1], 16)
    padded = aligned((max(rows, 1), width), np.float32)
    padded[:rows, : logits.shape[1]] = logits
    padded[:, logits.shape[1] :] = 1e9  # padding must never be chosen
    chosen, slots = aligned((rows, per_token), np.int64), aligned((rows, per_token), np.int64)
    weights, gates = aligned((rows, per_token), np.float32), aligned((rows,), np.float32)
    counts, table = np.full(experts, -7, np.int64), np.full(1 + 3 * experts, -7, np.int64)
    index = ROUTINGS.index(routing)
    values = [address(each) for each in (chosen, weights, gates)]
    route = RouteOperands(address(padded), width, experts, per_token, index, *values, **choice)
    run(pool, KERNELS.route, [route], step_record(num_tokens=rows))
    group = GroupOperands(values[0], experts, per_token, address(counts), address(table), address(slots))
    run(pool, KERNELS.group, [group], step_record(num_tokens=rows))
    return Choices(chosen, weights, gates, slots, table[1 : 1 + 3 * table[0]].reshape(-1, 3))


def best(logits: Array, per_token: int) -> Array:
    """Return the indices of the largest, of equal ones the first."""
    return np.argsort(-logits, axis=1, kind="stable")[:, :per_token]


def weights_of(logits: Array, chosen: Array, routing: str) -> Array:
    """Return the weights by definition, in float64."""
    of_chosen = np.take_along_axis(logits, chosen, 1).astype(np.float64)
    if routing == "softmax_of_near":  # with a margin of 0: among equal ones that are left
        count = (logits[:, None, :] == of_chosen[:, :, None]).sum(2)
        return 1 / (count - np.tril(of_chosen[:, :, None] == of_chosen[:, None, :], -1).sum(2))
    if routing.startswith("sigmoid"):
        sigmoids = 1 / (1 + np.exp(-of_chosen))
        return sigmoids if routing == "sigmoid" else sigmoids / sigmoids.sum(1, keepdims=True)
    highest = logits.max(1, keepdims=True)
    over = logits if routing == "softmax" else of_chosen
    return np.exp(of_chosen - highest) / np.exp(over.astype(np.float64) - highest).sum(1, keepdims=True)


@given(st.data())
def test_choices_are_those_of_numpy(two_threads: WorkerPool, data: st.DataObject) -> None:
    experts = data.draw(st.integers(1, 70))
    per_token, rows = data.draw(st.integers(1, min(experts, 12))), data.draw(st.integers(0, 40))
    routing, has_ties = data.draw(st.sampled_from(ROUTINGS)), data.draw(st.booleans())
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    logits = (3 * rng.standard_normal((rows, experts + 1))).astype(np.float32)
    if has_ties:
        logits = np.rint(logits)
    got = routed(two_threads, logits, experts, per_token, routing)
    assert np.array_equal(got.chosen, best(logits[:, :experts], per_token))
    assert np.allclose(got.weights, weights_of(logits[:, :experts], got.chosen, routing), rtol=2e-6)
    assert np.allclose(got.gates, 1 / (1 + np.exp(-logits[:, experts].astype(np.float64))), rtol=1e-6)
    check_groups(got, experts)


@given(st.data())
def test_choices_by_scores_of_groups_are_those_of_numpy(two_threads: WorkerPool, data: st.DataObject) -> None:
    groups, size = data.draw(st.integers(1, 7)), data.draw(st.integers(2, 9))
    experts, top = groups * size, data.draw(st.integers(1, groups))
    per_token, best_of_group = data.draw(st.integers(1, min(top * size, 12))), data.draw(st.integers(1, 2))
    routing, has_bias = data.draw(st.sampled_from(ROUTINGS[:4])), data.draw(st.booleans())
    rng, rows = np.random.default_rng(data.draw(st.integers(0, 1000))), data.draw(st.integers(1, 20))
    logits = rng.standard_normal((rows, experts + 1)).astype(np.float32)
    bias, scaling = aligned((experts,), np.float32), np.float32(2.5)
    bias[:] = rng.standard_normal(experts) * has_bias
    scratch = aligned((rows, round_up(experts + 1, 16) + groups), np.float32)
    got = routed(
        two_threads,
        logits,
        experts,
        per_token,
        routing,
        scores=address(scratch),
        bias=address(bias) if has_bias else 0,
        groups=groups,
        top_groups=top,
        best_of_group=best_of_group,
        scaling=int(scaling.view(np.uint32)),
    )
    logits = logits[:, :experts].astype(np.float64)
    odds = np.exp(logits)
    scores = (odds / (1 + odds) if routing.startswith("sigmoid") else odds / odds.sum(1, keepdims=True)) + bias
    by_group = scores.reshape(rows, groups, size)
    of_groups = np.sort(by_group, 2)[:, :, -best_of_group:].sum(2)
    left_out = np.argsort(-of_groups, axis=1, kind="stable")[:, top:]
    np.put_along_axis(by_group, left_out[:, :, None], -np.inf, 1)
    assert np.array_equal(got.chosen, best(scores, per_token))
    assert np.allclose(got.weights, 2.5 * weights_of(logits, got.chosen, routing), rtol=4e-6)


def check_groups(got: Choices, experts: int) -> None:
    """Check that each choice has a row in its expert's group, in token order; experts rise, groups are aligned."""
    counts = np.bincount(got.chosen.ravel(), minlength=experts)
    assert got.groups[:, 0].tolist() == np.flatnonzero(counts).tolist()
    ends = 0
    for expert, begin, end in got.groups.tolist():
        assert begin == round_up(ends, GROUP_ROWS)
        assert got.slots.ravel()[got.chosen.ravel() == expert].tolist() == list(range(begin, end))
        ends = end


@pytest.mark.parametrize("routing", ROUTINGS)
def test_logits_that_are_no_numbers_choose_experts_and_stay_no_numbers(two_threads: WorkerPool, routing: str) -> None:
    logits = np.zeros((3, 9), np.float32)
    logits[1] = np.nan
    got = routed(two_threads, logits, 8, 2, routing)
    assert got.chosen.tolist() == [[0, 1]] * 3
    assert np.isnan(got.weights).tolist() == [[False] * 2, [True] * 2, [False] * 2]


COUNTS = [0, 1, 5, 0, 33, 16, 70]  # rows of each expert; shares are rows if weights stay in cache


def grouped(
    pool: WorkerPool, product: Product, x: Inputs, matrices: list[list[Shard]], counts: list[int] = COUNTS
) -> list[Array]:
    """Return the kernel's output [rows, columns] of each core, which has a shard of every matrix."""
    groups, begin = [], 0
    for matrix, count in enumerate(counts):
        if count:
            groups.append((matrix, begin, begin + count))
            begin = round_up(begin + count, GROUP_ROWS)
    table = np.array([len(groups), *(word for group in groups for word in group)], np.int64)
    scratch = aligned((pool.num_threads, 64 * matrices[0][0].value.shape[1]), np.uint8)
    outputs = [output_of(begin, product.columns, product.leaves_panels) for _ in matrices]
    operands = [
        operands_of(product, x, shard, output, scratch, groups=address(table), matrices=len(counts))
        for shards, output in zip(matrices, outputs, strict=True)
        for shard in shards
    ]
    run(pool, product.kernel, operands, step_record(num_tokens=1))
    return [from_panels(output, begin) if product.leaves_panels else output for output in outputs]


@cases
@pytest.mark.parametrize("is_gated", representative([False, True], False))
def test_each_group_is_multiplied_as_if_it_were_alone(
    pool: WorkerPool, weights: WeightFormat, isa: Isa, is_gated: bool
) -> None:
    """Results are equal bit by bit, whatever the other groups are, on each of two cores."""
    kernels, rng = kernels_of(weights, isa), np.random.default_rng(2)
    rows = sum(round_up(count, GROUP_ROWS) for count in COUNTS)
    values = rng.standard_normal((rows, 128))
    matrices = [[_shard(rng, weights, is_gated) for _ in COUNTS] for _ in range(2)]
    product = (
        gated(weights, kernels, 64, "silu") if is_gated else Product(kernels.matmul, weights, 128, activation="none")
    )
    got, begin = grouped(pool, product, Inputs(values, weights), matrices), 0
    for i, count in enumerate(COUNTS):
        own = Inputs(values[begin : begin + count], weights)
        want = multiply(pool, product, own, [shards[i] for shards in matrices])
        for core in range(2):
            assert np.array_equal(got[core][begin : begin + count], want[core])
        begin += round_up(count, GROUP_ROWS)


def _shard(rng: np.random.Generator, weights: WeightFormat, is_gated: bool) -> Shard:
    matrix = rng.standard_normal((128, 128))
    return Shard(interleave(matrix[:64], matrix[64:]) if is_gated else matrix, weights)


def test_a_matrix_without_rows_is_not_read(two_threads: WorkerPool) -> None:
    rng = np.random.default_rng(4)
    shards = [Shard(rng.standard_normal((64, 64)), "float32") for _ in range(3)]
    shards[1].tiles = None  # type: ignore[assignment] # address 0: reading it would end the process
    x = Inputs(rng.standard_normal((96, 64)), "float32")
    kernels = kernels_of("float32", "portable")
    (got,) = grouped(two_threads, Product(kernels.matmul, "float32", 64, activation="none"), x, [shards], [2, 0, 3])
    assert np.allclose(got[32:35], x.value[32:35] @ shards[2].value.T, rtol=1e-4, atol=1e-5)


def test_rows_are_gathered_to_panels(two_threads: WorkerPool) -> None:
    """A token's row is copied to the row of each of its choices."""
    rng = np.random.default_rng(7)
    rows, slots = rng.standard_normal((5, 64)).astype(np.float32), rng.permutation(32)[:10].reshape(5, 2)
    source, targets = aligned(rows.shape, np.float32), slots.astype(np.int64)
    source[:] = rows
    tokens = np.arange(10, dtype=np.int64) // 2
    for kernel, cell, dtype in ((pack_rows_bf16, "bf16", np.uint16), (pack_rows_i8, "i8", np.int8)):
        width = 32 if cell == "bf16" else 64
        panels, scales = aligned((2, 64 // width, 16, width), dtype), aligned((32,), np.float32)
        operands = PackOperands(
            address(source), address(panels), address(scales), 64, 2, address(tokens), address(targets)
        )
        run(two_threads, kernel, [operands], step_record(num_tokens=5))
        got = from_panels(panels, 32)
        for token in range(5):
            for slot in slots[token]:
                scale = scales[slot] if cell == "i8" else 1.0
                want = rows[token] if cell == "i8" else rounded(rows[token], "bf16")
                assert np.allclose(got[slot] * scale, want, atol=0.02 if cell == "i8" else 0)


@pytest.mark.parametrize("is_begun", [False, True])
def test_outputs_are_added_up_in_the_order_of_choice(pool: WorkerPool, is_begun: bool) -> None:
    rng, width = np.random.default_rng(8), 48
    logits = rng.standard_normal((11, 13)).astype(np.float32)
    choices = routed(pool, logits, 12, 4, "softmax")
    outputs = aligned((int(choices.groups[-1, 2]), width), np.float32)
    outputs[:] = rng.standard_normal(outputs.shape)
    begun = rng.standard_normal((2, 11, width)).astype(np.float32)
    partials = aligned((2, 11, width), np.float32)
    partials[:] = begun
    operands = [
        CombineOperands(
            address(outputs),
            address(partials[core]),
            width,
            *(address(each) for each in (choices.chosen, choices.slots, choices.weights)),
            per_token=4,
            first_expert=6 * core,
            last_expert=6 * core + 6,
            is_begun=int(is_begun),
            gates=address(choices.gates),
        )
        for core in range(2)
    ]
    run(pool, KERNELS.combine, operands, step_record(num_tokens=11))
    for core in range(2):
        want = begun[core] * choices.gates[:, None] * is_begun
        for k in range(4):
            is_own = (choices.chosen[:, k] // 6 == core)[:, None]
            want += is_own * choices.weights[:, k, None] * outputs[choices.slots[:, k]]
        assert np.allclose(partials[core], want, rtol=1e-5, atol=1e-6)


def test_inputs_are_weighted(two_threads: WorkerPool) -> None:
    rng = np.random.default_rng(9)
    rows, weights, weighed = (aligned(shape, np.float32) for shape in ((5, 64), (5, 3), (5, 3, 64)))
    rows[:], weights[:] = rng.standard_normal(rows.shape), rng.standard_normal(weights.shape)
    operands = WeighOperands(address(rows), address(weights), address(weighed), 64, 3)
    run(two_threads, KERNELS.weigh, [operands], step_record(num_tokens=5))
    assert np.array_equal(weighed, rows[:, None] * weights[:, :, None])
