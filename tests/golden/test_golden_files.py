"""The golden files: one for each shape, of checkpoints that can be made again bit by bit, and small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tools.golden.golden_file import DIRECTORY, Golden, golden_path, load_golden, save_golden, write_golden_checkpoint
from tools.golden.sequences import TokenSequence, token_sequences
from tools.random_checkpoint.shapes import SHAPES, TINY

MAX_TOTAL_BYTES = 1_000_000


@pytest.mark.parametrize("shape", TINY)
def test_weights_are_still_those_the_logits_were_computed_with(tmp_path: Path, shape: str) -> None:
    assert write_golden_checkpoint(shape, tmp_path / shape) == load_golden(golden_path(shape)).weights_sha256


@pytest.mark.parametrize("shape", TINY)
def test_logits_are_there_for_every_sequence_and_position(shape: str) -> None:
    golden = load_golden(golden_path(shape))
    assert golden.shape == shape
    assert golden.sequences == token_sequences(SHAPES[shape].vocab)
    assert {"torch", "transformers"} <= set(golden.versions)
    for sequence, logits in zip(golden.sequences, golden.logits, strict=True):
        assert logits.shape == (len(sequence.positions), SHAPES[shape].vocab)
        assert logits.dtype == np.float32
        assert 0.5 < logits.std() < 2.0


def test_files_are_those_of_the_tiny_shapes_and_small() -> None:
    files = list(DIRECTORY.glob("*.npz"))
    tiny = [file for file in files if file.name.startswith("tiny-")]
    assert sorted(tiny) == sorted(golden_path(shape) for shape in TINY)
    assert sum(file.stat().st_size for file in files) < MAX_TOTAL_BYTES


def test_sequences_reach_over_blocks_windows_and_original_contexts() -> None:
    sequences = token_sequences(303)
    assert [len(sequence.token_ids) for sequence in sequences] == [1, 17, 100]
    for sequence in sequences:
        assert all(0 <= token < 303 for token in sequence.token_ids)
        assert sequence.positions[-1] == len(sequence.token_ids) - 1
        assert sequence.positions == tuple(sorted(set(sequence.positions)))
    assert len(set(sequences[-1].token_ids)) > 50


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    logits = [np.arange(6, dtype=np.float32).reshape(1, 6)]
    golden = Golden("tiny-x", "00ff", {"torch": "1"}, [TokenSequence((3, 4))], logits)
    save_golden(tmp_path / "x.npz", golden)
    back = load_golden(tmp_path / "x.npz")
    assert (back.shape, back.weights_sha256, back.versions, back.sequences) == (
        golden.shape,
        golden.weights_sha256,
        golden.versions,
        golden.sequences,
    )
    np.testing.assert_array_equal(back.logits[0], logits[0])
