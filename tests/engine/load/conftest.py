"""Engines of tiny checkpoints, and a shape whose widths are divided without a rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from tests.engine.config import engine_config
from tools.random_checkpoint.shapes import SHAPES, Shape

Load = Callable[..., LoadedEngine]


@pytest.fixture
def load(kernel_cache: str) -> Load:
    def load_it(directory: Path, tp: int = 1, **fields: Any) -> LoadedEngine:
        config = engine_config(
            directory,
            kernel_cache,
            device=fields.pop("device", "inf2.48xlarge"),
            tensor_parallel_size=tp,
            dtype=fields.pop("dtype", "bfloat16"),
            max_model_len=64,
            max_num_seqs=2,
            max_num_batched_tokens=64,
            block_size=32,
            enable_prefix_caching=False,
            num_blocks_override=4,
            **fields,
        )
        return load_engine(config, lambda _: None)

    return load_it


@pytest.fixture
def divisible(monkeypatch: pytest.MonkeyPatch) -> str:
    """A shape whose widths are multiples of 64 on two cores, too."""
    shape = Shape("LlamaForCausalLM", 2, 128, 256, 4, 2, 384, 512, 32)
    monkeypatch.setitem(SHAPES, "divisible", shape)
    return "divisible"
