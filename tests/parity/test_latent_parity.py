"""Latent attention against transformers, in the checkpoints that it writes: logits, and tokens by the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from neuronserve.server.config import EngineConfig
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from tests.depth import representative
from tests.encoders import save
from tests.parity.latent_models import FAMILIES, MAX_TOKENS, VOCAB, random_model

TOLERANCE = 1e-5  # largest error over largest logit
TOKENS = np.random.default_rng(1).integers(0, VOCAB, 150).tolist()


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """name -> transformers' model and its checkpoint."""

    @cache
    def make(name: str) -> tuple[Any, Path]:
        model = random_model(name)
        return model, save(model, tmp_path_factory.mktemp(name) / name)

    return make


def engine_of(directory: Path, kernels: str, **options: Any) -> LoadedEngine:
    settings: dict[str, Any] = {
        "device": "inf2.48xlarge",
        "tensor_parallel_size": 1,
        "dtype": "float32",
        "max_model_len": MAX_TOKENS,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "max_num_queued_reqs": 4,
        "block_size": 16,
        "enable_prefix_caching": True,
        "device_memory_utilization": 0.9,
        "num_blocks_override": 40,
        "cpu_threads": 2,
        "kernel_cache_dir": kernels,
        "allow_unsupported_types": True,
    }
    return load_engine(EngineConfig(model_path=str(directory), **(settings | options)), lambda _: None)


def expected(model: Any, token_ids: list[int]) -> npt.NDArray[np.float32]:
    with torch.inference_mode():
        logits: npt.NDArray[np.float32] = model(torch.tensor([token_ids]), use_cache=False).logits[0].numpy()
    return logits


CASES = [(name, tp) for name in FAMILIES for tp in (1, 2, 4)]
OFTEN = [(name, 1 + i % 2) for i, name in enumerate(FAMILIES)] + [("deepseek-v3", 4)]


@pytest.mark.parametrize(("name", "tp"), representative(CASES, *OFTEN))
def test_logits_are_those_of_transformers(
    model_of: Callable[[str], tuple[Any, Path]], kernel_cache: str, name: str, tp: int
) -> None:
    model, directory = model_of(name)
    engine = engine_of(directory, kernel_cache, tensor_parallel_size=tp)
    try:
        got, want = engine.runner.logits(TOKENS), expected(model, TOKENS)
    finally:
        engine.runner.close()
    assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()
