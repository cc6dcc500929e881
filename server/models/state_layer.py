"""Mixers that keep a state of fixed size for each sequence and layer, instead of keys and values of every token.

Value heads share key heads as query heads share KV heads, so tensor parallelism divides them in the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from .linear import Axis, HeadCounts

CHANNELS = 64  # most channels of a short convolution that a core has or has not together


@dataclass(frozen=True, slots=True)
class ShortConvSpec:
    """A causal convolution of each channel, gated before and after by projections of the input."""

    channels: int
    taps: int  # tokens that a channel sees, its own included
    has_bias: bool = False  # of the projections and the convolution

    @property
    def value(self) -> Axis:
        """Channels of the convolution, which is also the output's axis."""
        unit = math.gcd(self.channels, CHANNELS)
        units = self.channels // unit
        return Axis("query", units, unit, heads=HeadCounts(units, units))

    @property
    def convolved(self) -> tuple[Axis, ...]:
        """Axes of the convolution's channels, in the order of the graph."""
        return (self.value,)


@dataclass(frozen=True, slots=True)
class GatedDeltaNetSpec:
    """Linear attention with a state [key_dim, value_dim] of each value head, updated by the gated delta rule."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    takes_turns: bool = False  # projections of one module alternate by key head

    @property
    def heads(self) -> HeadCounts:
        """Value heads, and the key heads that they share."""
        return HeadCounts(self.num_value_heads, self.num_key_heads)

    @property
    def value(self) -> Axis:
        """Axis of values and outputs."""
        return Axis("query", self.num_value_heads, self.value_dim, heads=self.heads)

    @property
    def key(self) -> Axis:
        """Axis of queries, and of keys."""
        return Axis("kv", self.num_key_heads, self.key_dim, heads=self.heads)

    @property
    def gate(self) -> Axis:
        """Axis of numbers that each value head has one of."""
        return Axis("query", self.num_value_heads, heads=self.heads)

    @property
    def convolved(self) -> tuple[Axis, ...]:
        """Axes of the convolution's channels, in the order of the graph: v, q, k."""
        return self.value, self.key, self.key


@dataclass(frozen=True, slots=True)
class Mamba2Spec:
    """A selective state-space layer (Mamba-2) with a state [state_size, head_dim] of each head."""

    num_heads: int
    head_dim: int
    num_groups: int  # of heads that share B and C, and of columns that are normed together
    state_size: int
    taps: int
    has_conv_bias: bool = True
    has_bias: bool = False  # of the projections
    norm: Literal["none", "after_gate", "before_gate"] = "after_gate"
    least_step: float = 0.0
    most_step: float = math.inf

    @property
    def heads(self) -> HeadCounts:
        """Heads, and the groups that they share."""
        return HeadCounts(self.num_heads, self.num_groups)

    @property
    def value(self) -> Axis:
        """Axis of x, z and outputs."""
        return Axis("query", self.num_heads, self.head_dim, heads=self.heads)

    @property
    def key(self) -> Axis:
        """Axis of B, and of C."""
        return Axis("kv", self.num_groups, self.state_size, heads=self.heads)

    @property
    def gate(self) -> Axis:
        """Axis of numbers that each head has one of."""
        return Axis("query", self.num_heads, heads=self.heads)

    @property
    def convolved(self) -> tuple[Axis, ...]:
        """Axes of the convolution's channels, in the order of the graph: x, B, C."""
        return self.value, self.key, self.key


Recurrent = GatedDeltaNetSpec | Mamba2Spec
StateMixer = ShortConvSpec | Recurrent
