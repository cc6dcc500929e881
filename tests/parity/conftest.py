"""Fixtures of the parity tests: a checkpoint of each tiny shape and transformers' model of it, made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from neuronserve.server.config import EngineConfig
from neuronserve.server.config.formats import Quantization
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from tools.golden.golden_file import write_golden_checkpoint
from tools.golden.oracle import Oracle

NUM_BLOCKS = 38  # of the cache: as many as the models of several groups of layers need for 256 tokens


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """shape -> the directory of its golden checkpoint."""

    @cache
    def make(shape: str) -> Path:
        directory = tmp_path_factory.mktemp(shape) / shape
        write_golden_checkpoint(shape, directory)
        return directory

    return make


@pytest.fixture(scope="session")
def oracle_of(checkpoint_of: Callable[[str], Path]) -> Callable[[str], Oracle]:
    """shape -> transformers' model of its golden checkpoint."""
    return cache(lambda shape: Oracle(checkpoint_of(shape)))


@pytest.fixture(scope="session")
def load(kernel_cache: str) -> Callable[..., LoadedEngine]:
    """(directory, cores, is_expert_parallel, quantization=None) -> an engine of float32, or quantized."""

    @cache
    def engine(
        directory: Path, tp: int, is_expert_parallel: bool, quantization: Quantization | None = None
    ) -> LoadedEngine:
        config = EngineConfig(
            model_path=str(directory),
            device="inf2.48xlarge",
            tensor_parallel_size=tp,
            dtype="bfloat16" if quantization else "float32",
            max_model_len=256,
            max_num_seqs=2,
            max_num_batched_tokens=64,
            max_num_queued_reqs=2,
            block_size=16,
            enable_prefix_caching=False,
            device_memory_utilization=0.9,
            num_blocks_override=NUM_BLOCKS,
            cpu_threads=2,
            kernel_cache_dir=kernel_cache,
            quantization=quantization,
            enable_expert_parallel=is_expert_parallel,
            allow_unsupported_types=True,
        )
        return load_engine(config, lambda _: None)

    return engine
