"""Ops of mixers that keep a state."""

from __future__ import annotations

from dataclasses import dataclass

from .linear import Channels, Vector


@dataclass(frozen=True, slots=True)
class Convolution:
    """Causal convolution of each channel over its last inputs, which are a state. SiLU follows, or gates are around it.

    With gates, y = c * convolution(b * x); b, c and x are the parts of the linear layer before.
    """

    weight: Channels
    bias: Channels | None
    is_gated: bool

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """Tensors of the op."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Update of a state [key_dim, value_dim] of each value head by each token: Mamba-2, or the gated delta rule.

    Formulas: kernels/state/records.py. Only Mamba-2 has `skips`.
    """

    decays: Vector
    step_bias: Vector
    skips: Vector | None = None

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """Tensors of the op."""
        return tuple(vector for vector in (self.decays, self.step_bias, self.skips) if vector is not None)


@dataclass(frozen=True, slots=True)
class GatedNorm:
    """RMSNorm of groups of columns with a gate, x * silu(z), before or after it; without a weight the gate alone."""

    weight: Vector | None  # divided where each column has its own, otherwise one for each column of a value head
    eps: float
    is_gate_first: bool = False

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """Tensors of the op."""
        return () if self.weight is None else (self.weight,)
