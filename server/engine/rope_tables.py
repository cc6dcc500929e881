"""Cosines and sines of rotary embeddings, with the frequency scalings of checkpoints.

Formulas: linear (position interpolation, Chen et al. 2023), llama3 (Llama 3.1's low/high frequency blend), YaRN (Peng
et al. 2023, arXiv:2309.00071, section 3), LongRoPE (Ding et al. 2024, arXiv:2402.13753: a factor for each pair); names
as in Hugging Face configs.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..models.layer import RopeSpec

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]

BLOCK = 1024  # positions computed at once


def inverse_frequencies(rope: RopeSpec | None, rotary_dim: int, num_positions: int = 0) -> Float64:
    """Return the radians per position of each pair of dimensions, [rotary_dim / 2]; zeros for None.

    Only longrope depends on the number of positions served: keys in a shared cache are rotated before the length of a
    text is known, so all texts have the same factors.
    """
    if rope is None:
        return np.zeros(rotary_dim // 2)
    plain = rope.theta ** -(np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "proportional":
        return np.where(np.arange(len(plain)) < int(rope.partial_factor * rotary_dim // 2), plain / rope.factor, 0.0)
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, plain, rotary_dim)
    if rope.kind == "longrope":
        is_long = num_positions > rope.original_max_position
        factors: Float64 = np.array(rope.long_factors if is_long else rope.short_factors, np.float64)
        return plain / factors
    return plain


def _llama3(rope: RopeSpec, plain: Float64) -> Float64:
    """Stretch long wavelengths by `factor`, keep short ones and blend the rest."""
    turns = rope.original_max_position * plain / (2 * math.pi)  # over the original context
    low, high = rope.low_freq_factor, rope.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0) if high > low else np.where(turns > low, 1.0, 0.0)
    return keep * plain + (1 - keep) * plain / rope.factor


def _yarn(rope: RopeSpec, plain: Float64, rotary_dim: int) -> Float64:
    """Keep dimensions that turn often, interpolate dimensions that turn rarely, with a ramp between."""

    def dimension(turns: float) -> float:
        span = rope.original_max_position / (turns * 2 * math.pi)
        return rotary_dim * math.log(span) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0.0), min(high, rotary_dim - 1.0)
    ramp = (np.arange(rotary_dim // 2) - low) / max(high - low, 0.001)
    interpolate: Float64 = np.clip(ramp, 0.0, 1.0)
    return interpolate * plain / rope.factor + (1 - interpolate) * plain


def fill_rope_tables(rope: RopeSpec | None, cos: Float32, sin: Float32) -> None:
    """Write cos and sin, each [positions, rotary_dim / 2], the attention factor included.

    Works by blocks: in float64, the tables of a long context would need several times their own memory.
    """
    frequencies = inverse_frequencies(rope, 2 * cos.shape[1], len(cos))
    scale = 1.0 if rope is None else rope.attention_factor
    for begin in range(0, len(cos), BLOCK):
        positions = np.arange(begin, min(begin + BLOCK, len(cos)), dtype=np.float64)
        angles = np.outer(positions, frequencies)
        cos[begin : begin + BLOCK], sin[begin : begin + BLOCK] = np.cos(angles) * scale, np.sin(angles) * scale
