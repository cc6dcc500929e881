"""Operands of the kernels around experts."""

from __future__ import annotations

from typing import NamedTuple

from ..records import offsets, size_of


class RouteOperands(NamedTuple):
    """The choice of each token, and the weights of its experts' outputs."""

    logits: int  # float32 [T, ldc]: of each expert, then of the shared network's gate; padded to sixteen
    ldc: int
    experts: int  # E
    per_token: int  # K
    routing: int  # index in ROUTINGS
    chosen: int  # output, int64 [T, K], the largest logit first
    weights: int  # output, float32 [T, K]
    gates: int  # output, float32 [T], sigmoid of the gate's logit, or 0
    scores: int = 0  # scratch, float32 [T, ldc + groups], of experts, then of groups; 0 = the largest logits win
    bias: int = 0  # float32 [E] of scores, or 0
    groups: int = 1  # G, of neighbouring experts
    top_groups: int = 1  # from which experts are chosen
    best_of_group: int = 1  # scores whose sum is the group's
    scaling: int = 0x3F800000  # float32 bits, factor of the weights; 1.0
    scales: int = 0  # float32 [E], factors of the weights, or 0
    margin: int = 0  # bits of a float32, of softmax_of_near


class GroupOperands(NamedTuple):
    """The choices of all tokens as rows sorted by expert."""

    chosen: int  # int64 [T, K]
    experts: int
    per_token: int
    counts: int  # int64 [E], scratch
    groups: int  # output, GroupTable of the experts that were chosen
    slots: int  # output, int64 [T, K], the row of each choice


class WeighOperands(NamedTuple):
    """`weighed[t, k] = weights[t, k] * rows[t]`, for experts whose inputs are weighted."""

    rows: int  # float32 [T, width]
    weights: int  # float32 [T, K]
    weighed: int  # float32 [T, K, width]
    width: int
    per_token: int


class CombineOperands(NamedTuple):
    """One core's partial sums: `partial[t] = gates[t] * partial[t] + sum over k of weights[t, k] * outputs[slot]`."""

    outputs: int  # float32 rows, `width` apart
    partial: int  # float32 [T, width]
    width: int
    chosen: int  # int64 [T, K]
    slots: int  # int64 [T, K]
    weights: int  # float32 [T, K], 0 = all 1
    per_token: int
    first_expert: int  # first of those that the core computes, wholly or in part
    last_expert: int  # end of those
    is_begun: int  # 1 if `partial` holds the product of a shared network
    gates: int  # float32 [T], factors of that product, or 0


ROUTE = offsets(RouteOperands)
GROUPING = offsets(GroupOperands)
WEIGH = offsets(WeighOperands)
COMBINE = offsets(CombineOperands)
COMBINE_BYTES = size_of(CombineOperands)
