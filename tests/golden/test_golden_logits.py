"""The engine gives the logits that transformers gave, on every tiny shape; needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.depth import representative
from tools.golden.golden_file import golden_path, load_golden, write_golden_checkpoint
from tools.random_checkpoint.shapes import TINY

BLOCK_SIZES = (16, 32)  # the smallest, and the default, which allows attention on the tile unit
FLOAT32_TOLERANCE = 1e-5  # largest error over largest logit
BFLOAT16_TOLERANCE = 0.02  # mean error over mean logit; rounding the weights alone costs 0.006 to 0.014
# Shapes in which it costs more, in transformers too: norms of small outputs of a state, and other choices of experts.
AMPLIFIED = {
    "tiny-lfm2-moe": 0.05,
    "tiny-qwen3-5-moe": 0.1,
    "tiny-qwen3-next": 0.1,
    "tiny-bamba": 0.04,
    "tiny-nemotron-h": 0.04,
}


@pytest.mark.parametrize("block_size", representative(BLOCK_SIZES, 32))
@pytest.mark.parametrize("shape", TINY)
def test_float32_logits_are_the_golden_ones(
    tmp_path: Path, engine_logits: Callable[..., np.ndarray], shape: str, block_size: int
) -> None:
    golden = load_golden(golden_path(shape))
    write_golden_checkpoint(shape, tmp_path / shape)
    for sequence, expected in zip(golden.sequences, golden.logits, strict=True):
        got = engine_logits(tmp_path / shape, "float32", 1, sequence.token_ids, block_size)
        assert got.shape == (len(sequence.token_ids), expected.shape[1])
        assert np.abs(got[list(sequence.positions)] - expected).max() <= FLOAT32_TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize("block_size", representative(BLOCK_SIZES, 32))
@pytest.mark.parametrize("shape", TINY)
def test_bfloat16_logits_are_near_the_golden_ones(
    tmp_path: Path, engine_logits: Callable[..., np.ndarray], shape: str, block_size: int
) -> None:
    golden = load_golden(golden_path(shape))
    write_golden_checkpoint(shape, tmp_path / shape)
    got = [
        engine_logits(tmp_path / shape, "bfloat16", 1, sequence.token_ids, block_size)[list(sequence.positions)]
        for sequence in golden.sequences
    ]
    errors, expected = np.concatenate(got) - np.concatenate(golden.logits), np.concatenate(golden.logits)
    assert np.abs(errors).mean() <= AMPLIFIED.get(shape, BFLOAT16_TOLERANCE) * np.abs(expected).mean()
