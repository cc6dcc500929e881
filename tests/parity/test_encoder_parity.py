"""Encoders against transformers, live: every state of every token, for each family and tensor-parallel size."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neuronserve.server.config.formats import Quantization
from neuronserve.server.types import TokenizedText
from tests.depth import representative
from tests.encoders import FAMILIES, LONGEST, VOCAB, loaded, random_model, save

FLOAT32_TOLERANCE = 1e-5  # largest error over largest value
LENGTHS = (1, 2, 17, 64, 65, 130, LONGEST)
# Cosine distance to float32. Random weights have no outliers: about twice what was measured.
FORMATS: dict[Quantization, float] = {"int8": 1e-3, "fp8": 8e-3, "int4": 0.12}
PARALLEL = [(name, size) for name in FAMILIES for size in (1, 2, 4)]
OFTEN = [(name, 1) for name in FAMILIES] + [("bert", 2), ("mpnet", 4), ("modernbert", 2), ("qwen3", 4)]
OFTEN += [("albert", 4), ("deberta-v2", 4), ("deberta-v2-no-buckets", 2), ("nomic_bert", 2), ("gte", 4)]

Models = Callable[[str], tuple[Path, Any]]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Family -> its checkpoint and transformers' model."""

    @cache
    def make(name: str) -> tuple[Path, Any]:
        model = random_model(name)
        return save(model, tmp_path_factory.mktemp(name) / name), model

    return make


def has_types(name: str, model: Any) -> bool:
    """Whether a text's tokens may be of two types."""
    return getattr(model.config, "type_vocab_size", 0) == 2 and name != "mpnet"


def texts(are_of_two_types: bool) -> list[TokenizedText]:
    rng = np.random.default_rng(5)
    found = []
    for length in LENGTHS:
        types = (0,) * (length // 3) + (1,) * (length - length // 3) if are_of_two_types else ()
        found.append(TokenizedText(tuple(rng.integers(4, VOCAB, length).tolist()), types))
    return found


def expected(model: Any, text: TokenizedText) -> np.ndarray:
    inputs = {"input_ids": torch.tensor([text.token_ids])}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if text.token_types:
        inputs["token_type_ids"] = torch.tensor([text.token_types])
    with torch.no_grad():
        return model(**inputs).last_hidden_state[0].numpy()


def worst(got: np.ndarray, want: np.ndarray) -> float:
    """Largest error over largest value."""
    assert got.shape == want.shape
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize(("name", "size"), representative(PARALLEL, *OFTEN))
def test_float32_states_are_those_of_transformers(model_of: Models, kernel_cache: str, name: str, size: int) -> None:
    directory, model = model_of(name)
    with loaded(directory, kernel_cache, tensor_parallel_size=size) as found:
        for text in texts(has_types(name, model)):
            assert worst(found.encoder.states(text), expected(model, text)) <= FLOAT32_TOLERANCE


@pytest.mark.parametrize("name", representative(tuple(FAMILIES), "modernbert", "albert", "deberta-v2"))
def test_vectors_of_8_and_4_bits_are_near_those_of_float32(model_of: Models, kernel_cache: str, name: str) -> None:
    directory, model = model_of(name)
    given = texts(has_types(name, model))
    with loaded(directory, kernel_cache) as found:
        want = found.encoder.encode(given)
    for quantization, limit in FORMATS.items():
        with loaded(directory, kernel_cache, dtype="bfloat16", quantization=quantization) as found:
            distance = 1 - (found.encoder.encode(given) * want).sum(axis=1)
        assert 0 < distance.max() <= limit
