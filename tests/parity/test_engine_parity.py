"""The engine against transformers, live: every logit of every position, and every tensor-parallel size against one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.depth import representative
from tools.golden.oracle import Oracle
from tools.golden.sequences import token_sequences
from tools.random_checkpoint.expert_shapes import TINY_EXPERTS
from tools.random_checkpoint.shapes import SHAPES, TINY

BLOCK_SIZES = (16, 32)  # the smallest, and the default, with which attention may be on the tile unit
FLOAT32_TOLERANCE = 1e-5  # largest error over largest logit
BFLOAT16_TOLERANCE = 0.02  # mean error over mean logit
CHOICES_TOLERANCE = 0.1  # the same where there are experts: of random ones rounding turns a choice now and then
PARALLEL_TOLERANCE = 1e-5  # largest error over largest logit
OFTEN = ("tiny-llama", "tiny-mistral", "tiny-qwen3", "tiny-gemma2", "tiny-olmo2")  # the golden files have every shape
LONGEST = 300  # tokens: past every window, block and original context many times

Checkpoints = Callable[[str], Path]
Oracles = Callable[[str], Oracle]
Engine = Callable[..., np.ndarray]


def inputs(shape: str) -> list[tuple[int, ...]]:
    vocab = SHAPES[shape].vocab
    random = np.random.default_rng(1).integers(0, vocab, LONGEST).tolist()
    return [*(sequence.token_ids for sequence in token_sequences(vocab)), tuple(random)]


def worst(got: np.ndarray, expected: np.ndarray) -> float:
    """Largest error over largest logit."""
    assert got.shape == expected.shape
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("block_size", representative(BLOCK_SIZES, 32))
@pytest.mark.parametrize("shape", representative(TINY, *OFTEN))
def test_float32_logits_are_those_of_transformers(
    checkpoint_of: Checkpoints, oracle_of: Oracles, engine_logits: Engine, shape: str, block_size: int
) -> None:
    for token_ids in inputs(shape):
        got = engine_logits(checkpoint_of(shape), "float32", 1, token_ids, block_size)
        assert worst(got, oracle_of(shape).logits(token_ids)) <= FLOAT32_TOLERANCE


@pytest.mark.parametrize("block_size", representative(BLOCK_SIZES, 32))
@pytest.mark.parametrize("shape", representative(TINY, *OFTEN))
def test_bfloat16_logits_are_near_those_of_transformers(
    checkpoint_of: Checkpoints, oracle_of: Oracles, engine_logits: Engine, shape: str, block_size: int
) -> None:
    directory = checkpoint_of(shape)
    got = np.concatenate([engine_logits(directory, "bfloat16", 1, ids, block_size) for ids in inputs(shape)])
    expected = np.concatenate([oracle_of(shape).logits(ids) for ids in inputs(shape)])
    tolerance = CHOICES_TOLERANCE if shape in TINY_EXPERTS else BFLOAT16_TOLERANCE
    assert np.abs(got - expected).mean() <= tolerance * np.abs(expected).mean()


# Keys that no public model has so; the last means nothing to the code of the family.
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
UNUSUAL: list[tuple[str, dict[str, Any]]] = [
    ("tiny-llama4", {"num_experts_per_tok": 3}),
    ("tiny-llama4-dense", {"rope_parameters": YARN}),
    ("tiny-gemma3", {"attn_logit_softcapping": 2.0}),
]


@pytest.mark.parametrize(("shape", "keys"), UNUSUAL)
def test_unusual_configurations_mean_what_they_do_to_transformers(
    checkpoint_of: Checkpoints, engine_logits: Engine, tmp_path: Path, shape: str, keys: dict[str, Any]
) -> None:
    directory = tmp_path / shape
    shutil.copytree(checkpoint_of(shape), directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | keys))
    oracle = Oracle(directory)
    for token_ids in inputs(shape):
        assert worst(engine_logits(directory, "float32", 2, token_ids), oracle.logits(token_ids)) <= FLOAT32_TOLERANCE


# Most of these do not divide the heads: they are padded, and KV heads replicated.
SIZES = [(shape, size) for shape in TINY for size in (2, 4, 8, 12, 24)]
SOME_SIZES = [("tiny-odd", 4), ("tiny-qwen2", 24), ("tiny-olmo2", 4), ("tiny-gemma2", 2)]


@pytest.mark.parametrize(("shape", "size"), representative(SIZES, *SOME_SIZES))
def test_tensor_parallel_logits_are_those_of_one_core(
    checkpoint_of: Checkpoints, engine_logits: Engine, shape: str, size: int
) -> None:
    for token_ids in inputs(shape):
        alone = engine_logits(checkpoint_of(shape), "float32", 1, token_ids)
        assert worst(engine_logits(checkpoint_of(shape), "float32", size, token_ids), alone) <= PARALLEL_TOLERANCE
