"""Sizes of the state that a layer keeps of each sequence, and of the working memory of its kernels."""

from __future__ import annotations

from .hbm import ALIGNMENT
from .layout import FLOAT32_BYTES, N_TILE, round_up

STATE_TOKENS = 32  # tokens of a sequence whose keys are prepared together
STATE_COLUMNS = 64  # value columns of a head that are updated together: with 128 keys they fit in a first-level cache


def convolution_state_bytes(channels: int, taps: int) -> int:
    """Bytes of the last `taps` - 1 inputs of a core's channels: float32 [taps - 1, channels]."""
    return round_up(FLOAT32_BYTES * (taps - 1) * channels, ALIGNMENT)


def recurrent_state_bytes(heads: int, key_dim: int, value_dim: int) -> int:
    """Bytes of a core's recurrent state: float32 [heads], each in blocks of STATE_COLUMNS, the last ones of N_TILE."""
    return round_up(FLOAT32_BYTES * heads * key_dim * round_up(value_dim, N_TILE), ALIGNMENT)


def recurrence_scratch_bytes(key_dim: int) -> int:
    """Bytes of a worker's scratch: normed keys and queries of STATE_TOKENS tokens, their decays and strengths."""
    return FLOAT32_BYTES * STATE_TOKENS * (2 * round_up(key_dim, N_TILE) + 2)
