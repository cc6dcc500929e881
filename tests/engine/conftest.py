"""The configuration of an engine for a tiny model; each test changes what it is about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neuronserve.server.config import EngineConfig

MakeConfig = Callable[..., EngineConfig]


@pytest.fixture(scope="session")
def engine_config(kernel_cache: str) -> MakeConfig:
    def make(directory: Path, **changes: Any) -> EngineConfig:
        fields: dict[str, Any] = {
            "device": "inf2.xlarge",
            "tensor_parallel_size": 1,
            "dtype": "float32",
            "max_model_len": 64,
            "max_num_seqs": 2,
            "max_num_batched_tokens": 32,
            "max_num_queued_reqs": 4,
            "block_size": 16,
            "enable_prefix_caching": False,
            "device_memory_utilization": 0.9,
            "num_blocks_override": 8,
            "cpu_threads": 2,
        }
        return EngineConfig(model_path=str(directory), kernel_cache_dir=kernel_cache, **fields | changes)

    return make
