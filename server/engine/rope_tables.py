"""Cosines and sines of rotary embeddings, with the frequency scalings that checkpoints ask for.

Formulas: linear (position interpolation, Chen et al. 2023), llama3 (Llama 3.1's low/high frequency blend), YaRN (Peng
et al. 2023, arXiv:2309.00071, section 3); names as in Hugging Face configs.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from server.config import RopeSpec

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Float64:
    """Radians per position of each pair of dimensions, [head_dim / 2]."""
    plain = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, plain, head_dim)
    return plain


def _llama3(rope: RopeSpec, plain: Float64) -> Float64:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    turns = rope.original_max_position * plain / (2 * math.pi)  # over the original context
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = np.clip(keep, 0.0, 1.0)
    return keep * plain + (1 - keep) * plain / rope.factor


def _yarn(rope: RopeSpec, plain: Float64, head_dim: int) -> Float64:
    """Dimensions that turn often are kept, those that turn rarely are interpolated, with a ramp between."""

    def dimension(turns: float) -> float:
        span = rope.original_max_position / (turns * 2 * math.pi)
        return head_dim * math.log(span) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, head_dim - 1.0)
    ramp = (np.arange(head_dim // 2) - low) / max(high - low, 0.001)
    interpolate: Float64 = np.clip(ramp, 0.0, 1.0)
    return interpolate * plain / rope.factor + (1 - interpolate) * plain


def rope_tables(rope: RopeSpec, head_dim: int, num_positions: int) -> tuple[Float32, Float32]:
    """cos and sin, each float32 [num_positions, head_dim / 2], YaRN's attention factor included."""
    angles = np.outer(np.arange(num_positions, dtype=np.float64), inverse_frequencies(rope, head_dim))
    scale = rope.attention_factor
    return (np.cos(angles) * scale).astype(np.float32), (np.sin(angles) * scale).astype(np.float32)
