"""The configuration of an engine for a small model; each test changes what it is about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neuronserve.server.config import EngineConfig


def engine_config(directory: Path, kernel_cache: str, **changes: Any) -> EngineConfig:
    fields: dict[str, Any] = {
        "device": "inf2.xlarge",
        "tensor_parallel_size": 1,
        "dtype": "bfloat16",
        "max_model_len": 192,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 96,
        "max_num_queued_reqs": 64,
        "block_size": 16,
        "enable_prefix_caching": True,
        "device_memory_utilization": 0.9,
        "num_blocks_override": 64,
        "cpu_threads": 2,
    }
    return EngineConfig(model_path=str(directory), kernel_cache_dir=kernel_cache, **fields | changes)
