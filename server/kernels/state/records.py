"""Operands of the kernels of layers that keep a state of each sequence.

A core has slots of `slot_bytes`, each with the states of all its layers. Sequence b of a step continues from slot
`state_read[b]` and leaves the state after row t in slot `state_write[t]` (StepRecord). Rows of one slot are neighbours,
and the state after the last of them stays. The last row may write the slot that is read. Slot 0 reads as zeros. A slot
that one sequence of the step writes must not be read by another.
"""

from __future__ import annotations

from typing import NamedTuple

from ..records import offsets, size_of


class ConvolutionOperands(NamedTuple):
    """One core's causal convolution of each channel over its last `taps` inputs.

    `output[t] = after[t] * activation(bias + sum over i of weights[i] * x[t - taps + 1 + i])`, `x = before * source`.
    """

    source: int  # first channel of float32 rows [T], `source_ldc` elements apart
    before: int  # rows as far apart as those of `source`, or 0
    after: int  # rows as far apart as those of `source`, or 0
    source_ldc: int
    weights: int  # float32 [taps, channels], the oldest input first
    bias: int  # float32 [channels] or 0
    has_silu: int  # 1: the activation is SiLU
    taps: int  # at least 2
    channels: int  # of this core
    max_channels: int  # of the core with most
    output: int  # float32 rows [T], `output_ldc` elements apart; not the source
    output_ldc: int
    states: int  # of this layer in slot 0: float32 [taps - 1, channels], the oldest input first
    slot_bytes: int


class RecurrenceOperands(NamedTuple):
    """One core's recurrence of a state [key_dim, value_dim] of each value head, token by token.

    Gated delta rule, with q and k divided by their norms, q times `scale`:
      `decay = exp(-exp(decays) * softplus(steps + step_bias))`, `strength = sigmoid(strengths)`
      `state = decay * state + k (strength * (v - decay * k' state))'`, `output = q' state`
    Mamba-2, where k is B, q is C and v is x:
      `step = clamp(softplus(steps + step_bias), least_step, most_step)`, `decay = exp(-exp(decays) * step)`
      `state = decay * state + k (step * v)'`, `output = q' state + skips * v`
    """

    queries: int  # first key head of float32 rows [T, ldc]: q, or C
    keys: int  # k, or B
    values: int  # first value head: v, or x
    ldc: int  # elements between rows of queries, keys and values
    steps: int  # float32 [T, gate_ldc], one for each value head: a, or dt
    strengths: int  # b, rows as far apart as those of `steps`; delta rule only
    gate_ldc: int
    decays: int  # float32 [heads]: A_log
    step_bias: int  # float32 [heads]: dt_bias
    skips: int  # float32 [heads]: D; Mamba-2 only, or 0
    least_step: int  # bits of a float32; Mamba-2 only
    most_step: int  # bits of a float32, may be infinity; Mamba-2 only
    scale: int  # bits of a float32: 1 / sqrt(key_dim); delta rule only
    key_heads: int  # int32 [heads]: local key head of each value head
    heads: int  # value heads of this core
    max_heads: int  # of the core with most
    key_dim: int
    value_dim: int
    output: int  # float32 rows [T], `output_ldc` elements apart: column = local value head * value_dim + d
    output_ldc: int
    states: int  # of this layer in slot 0; its layout is in server/device/state_layout.py
    slot_bytes: int
    scratch: int  # one area of `scratch_stride` bytes for each worker: recurrence_scratch_bytes
    scratch_stride: int


class GatedNormOperands(NamedTuple):
    """One core's RMSNorm of groups of columns with a gate: `norm(x) * silu(z)`, or `norm(x * silu(z))`.

    Without `weight` it is `x * silu(z)`. Groups lie in one core, or each spans `group_cores` neighbouring cores, whose
    sums of squares are added in order: a collective.
    """

    source: int  # x, float32 rows [T], `source_ldc` elements apart
    source_ldc: int
    gates: int  # z, float32 rows [T], `gates_ldc` elements apart
    gates_ldc: int
    weight: int  # float32 of this core's columns, or 0: no norm
    weight_stride: int  # bytes between the weights of two groups; 0 if they share them
    groups: int  # on this core; 1 if a group spans cores
    max_groups: int  # of the core with most
    columns: int  # of a group on this core
    size: int  # columns of a whole group
    group_cores: int  # 1: groups lie in one core
    is_gate_first: int  # 1: the gate is applied before the norm (Mamba-2)
    eps: int  # bits of a float32
    output: int  # float32 rows [T], `output_ldc` elements apart; may be the source
    output_ldc: int
    has_sigmoid: int = 0  # 1: the gate is sigmoid(z) in place of silu(z)


CONVOLUTION = offsets(ConvolutionOperands)
RECURRENCE = offsets(RecurrenceOperands)
GATED_NORM = offsets(GatedNormOperands)
CONVOLUTION_BYTES = size_of(ConvolutionOperands)
RECURRENCE_BYTES = size_of(RecurrenceOperands)
GATED_NORM_BYTES = size_of(GatedNormOperands)
