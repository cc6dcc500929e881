"""Experts of each token by the router's logits, and rows sorted by expert.

Rows of one expert are neighbours, in the order of the tokens, from a multiple of GROUP_ROWS on: the tile unit
multiplies blocks of that size. Rows between groups are never read for a row that counts.
"""

from __future__ import annotations

import math

from ...device.layout import GROUP_ROWS
from ..isa import simd
from ..isa.jit import inline, kernel, share_begin
from ..isa.memory import load_f32, load_i64, store_f32, store_i64
from ..records import GROUP, GROUP_BYTES, GROUP_TABLE, GROUP_TABLE_BYTES, STEP
from .records import GROUPING, ROUTE, WEIGH

# Indexed by the operand.
ROUTINGS = ("softmax", "softmax_of_chosen", "sigmoid", "sigmoid_of_chosen", "softmax_of_near")
_SOFTMAX, _SOFTMAX_OF_CHOSEN, _SIGMOID_OF_CHOSEN, _SOFTMAX_OF_NEAR = 0, 1, 3, 4
_LEAST_SUM = 1e-20  # of sigmoids, which underflow to zero; as in DeepseekV3TopkRouter of transformers


@inline
def _exp(x):  # type: ignore[no-untyped-def]
    return simd.first_lane(simd.exp(simd.splat(x)))


@inline
def _sigmoid(x):  # type: ignore[no-untyped-def]
    return 1.0 / (1.0 + _exp(-x))


@inline
def _next_best(scores, count, last, last_index):  # type: ignore[no-untyped-def]
    """Return the largest of `count` scores after `last` in order, and its index; of equal ones the first.

    NaN counts as least. An index of -1 means that there is none.
    """
    best, best_index = -math.inf, -1
    for i in range(count):
        value = load_f32(scores + i * 4)
        if math.isnan(value):
            value = -math.inf
        is_left = value < last or (value == last and i > last_index)
        if is_left and (best_index < 0 or value > best):
            best, best_index = value, i
    return best, best_index


@inline
def _choose(scores, logits, experts, per_token, chosen, values):  # type: ignore[no-untyped-def]
    """Choose the experts with the largest `per_token` scores in order, and copy their logits to `values`."""
    last, last_expert = math.inf, -1
    for k in range(per_token):
        last, last_expert = _next_best(scores, experts, last, last_expert)
        store_i64(chosen + k * 8, last_expert)
        store_f32(values + k * 4, load_f32(logits + last_expert * 4))


@inline
def _highest(values, count):  # type: ignore[no-untyped-def]
    """Return the largest of `count` values, or NaN if the first is."""
    highest = load_f32(values)
    for i in range(1, count):
        highest = max(highest, load_f32(values + i * 4))
    return highest


@inline
def _sum_of_all(logits, experts, highest):  # type: ignore[no-untyped-def]
    """Return the sum of e ** (logit - highest) over all logits."""
    total = zero = simd.splat(0.0)
    for i in range(0, experts, 16):
        powers = simd.exp(simd.sub(simd.load(logits + i * 4), simd.splat(highest)))
        total = simd.add(total, simd.select_range(0, experts - i, powers, zero))
    return simd.sum_lanes(total)


@inline
def _score(routing, logits, experts, bias, scores):  # type: ignore[no-untyped-def]
    """Write the softmax or sigmoids of all logits, plus the bias of each expert."""
    highest = _highest(logits, experts)
    total = _sum_of_all(logits, experts, highest)
    for i in range(experts):
        value = load_f32(logits + i * 4)
        score = _exp(value - highest) / total if routing <= _SOFTMAX_OF_CHOSEN else _sigmoid(value)
        store_f32(scores + i * 4, score + load_f32(bias + i * 4) if bias != 0 else score)


@inline
def _limit_groups(scores, experts, groups, top_groups, best_of_group, of_groups):  # type: ignore[no-untyped-def]
    """Make the scores of experts outside the best `top_groups` groups the least; of equal groups the first is better.

    Scores of groups are written to `of_groups`.
    """
    size = experts // groups
    for group in range(groups):
        total, last, last_index = 0.0, math.inf, -1
        for _ in range(best_of_group):
            last, last_index = _next_best(scores + group * size * 4, size, last, last_index)
            total += last
        store_f32(of_groups + group * 4, total)
    for group in range(groups):
        own, better = load_f32(of_groups + group * 4), 0
        for other in range(groups):
            value = load_f32(of_groups + other * 4)
            better += int(value > own or (value == own and other < group))
        if better >= top_groups:
            for i in range(group * size, (group + 1) * size):
                store_f32(scores + i * 4, -math.inf)


@inline
def _weigh(routing, logits, experts, per_token, weights, scaling):  # type: ignore[no-untyped-def]
    """Turn chosen logits into weights, in place."""
    highest, total = load_f32(weights), 1.0
    if routing == _SOFTMAX:
        highest = _highest(logits, experts)
        total = _sum_of_all(logits, experts, highest)
    if routing == _SOFTMAX_OF_CHOSEN:
        highest, total = _highest(weights, per_token), 0.0
        for k in range(per_token):
            total += _exp(load_f32(weights + k * 4) - highest)
    if routing == _SIGMOID_OF_CHOSEN:
        total = _LEAST_SUM
        for k in range(per_token):
            total += _sigmoid(load_f32(weights + k * 4))
    for k in range(per_token):
        value = load_f32(weights + k * 4)
        value = _exp(value - highest) if routing <= _SOFTMAX_OF_CHOSEN else _sigmoid(value)
        store_f32(weights + k * 4, value / total * scaling)


@inline
def _weigh_near(logits, experts, per_token, chosen, weights, margin):  # type: ignore[no-untyped-def]
    """Turn chosen logits into their softmax among those that are near and not chosen before, in place.

    Near are logits whose distance from the chosen one is at most `margin` of the larger of it and their size. Source:
    `sparsemixer` of transformers, models/phimoe.
    """
    for k in range(per_token):
        best, total = load_f32(weights + k * 4), 0.0
        for i in range(experts):
            value, is_left = load_f32(logits + i * 4), True
            for before in range(k):
                is_left = is_left and load_i64(chosen + before * 8) != i
            is_far = value != best and (best - value) / max(abs(value), best) > margin  # never for NaN
            if is_left and not is_far:
                total += _exp(value - best)
        store_f32(weights + k * 4, 1.0 / total)


@kernel
def route(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Choose experts of each token and compute their weights. Items are rows."""
    rows, ldc = load_i64(step + STEP.num_tokens), load_i64(operands + ROUTE.ldc)
    experts, per_token = load_i64(operands + ROUTE.experts), load_i64(operands + ROUTE.per_token)
    gates, routing = load_i64(operands + ROUTE.gates), load_i64(operands + ROUTE.routing)
    groups, top_groups = load_i64(operands + ROUTE.groups), load_i64(operands + ROUTE.top_groups)
    for t in range(share_begin(rows, worker, workers), share_begin(rows, worker + 1, workers)):
        logits, weights = load_i64(operands + ROUTE.logits) + t * ldc * 4, load_i64(operands + ROUTE.weights)
        weights += t * per_token * 4
        scores = load_i64(operands + ROUTE.scores)
        if scores == 0:
            scores = logits
        else:
            scores += t * (ldc + groups) * 4
            _score(routing, logits, experts, load_i64(operands + ROUTE.bias), scores)
        if top_groups < groups:
            best = load_i64(operands + ROUTE.best_of_group)
            _limit_groups(scores, experts, groups, top_groups, best, scores + ldc * 4)
        _choose(scores, logits, experts, per_token, load_i64(operands + ROUTE.chosen) + t * per_token * 8, weights)
        scales, chosen = load_i64(operands + ROUTE.scales), load_i64(operands + ROUTE.chosen) + t * per_token * 8
        if routing == _SOFTMAX_OF_NEAR:
            _weigh_near(logits, experts, per_token, chosen, weights, load_f32(operands + ROUTE.margin))
        else:
            _weigh(routing, logits, experts, per_token, weights, load_f32(operands + ROUTE.scaling))
        if scales != 0:
            for k in range(per_token):
                by = load_f32(scales + load_i64(chosen + k * 8) * 4)
                store_f32(weights + k * 4, load_f32(weights + k * 4) * by)
        if gates != 0:
            store_f32(gates + t * 4, _sigmoid(load_f32(logits + experts * 4)))


@kernel
def group(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Sort the choices by expert (counting sort). One worker does it: there are few."""
    if worker != 0:
        return
    chosen, counts = load_i64(operands + GROUPING.chosen), load_i64(operands + GROUPING.counts)
    groups, slots = load_i64(operands + GROUPING.groups), load_i64(operands + GROUPING.slots)
    experts = load_i64(operands + GROUPING.experts)
    choices = load_i64(step + STEP.num_tokens) * load_i64(operands + GROUPING.per_token)
    for expert in range(experts):
        store_i64(counts + expert * 8, 0)
    for i in range(choices):
        at = counts + load_i64(chosen + i * 8) * 8
        store_i64(at, load_i64(at) + 1)
    count = begin = 0
    for expert in range(experts):  # a count becomes the index of the expert's next row
        rows = load_i64(counts + expert * 8)
        store_i64(counts + expert * 8, begin)
        if rows > 0:
            at = groups + GROUP_TABLE_BYTES + count * GROUP_BYTES
            store_i64(at + GROUP.matrix, expert)
            store_i64(at + GROUP.begin, begin)
            store_i64(at + GROUP.end, begin + rows)
            begin += (rows + GROUP_ROWS - 1) // GROUP_ROWS * GROUP_ROWS
            count += 1
    store_i64(groups + GROUP_TABLE.num_groups, count)
    for i in range(choices):
        at = counts + load_i64(chosen + i * 8) * 8
        slot = load_i64(at)
        store_i64(slots + i * 8, slot)
        store_i64(at, slot + 1)


@kernel
def weigh_rows(operands: int, cores: int, step: int, worker: int, workers: int) -> None:
    """Multiply each token's row by the weight of each of its experts. Items are choices."""
    width, per_token = load_i64(operands + WEIGH.width), load_i64(operands + WEIGH.per_token)
    choices = load_i64(step + STEP.num_tokens) * per_token
    for choice in range(share_begin(choices, worker, workers), share_begin(choices, worker + 1, workers)):
        row = load_i64(operands + WEIGH.rows) + choice // per_token * width * 4
        to = load_i64(operands + WEIGH.weighed) + choice * width * 4
        by = simd.splat(load_f32(load_i64(operands + WEIGH.weights) + choice * 4))
        for i in range(0, width, 16):
            simd.store(to + i * 4, simd.mul(simd.load(row + i * 4), by))
