"""The image's kernels: whatever an engine would compile at its start is among them."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from neuronserve.server.config import EngineConfig
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.depth import representative
from tools.precompile import compile_levels, kernels


@pytest.mark.parametrize(
    "quantization", representative([None, "int8", "int8-weight-only", "fp8", "fp8_e5m2", "int4"], None, "int8", "int4")
)
def test_nothing_is_left_to_compile_at_the_start(quantization: str | None, pytestconfig: pytest.Config) -> None:
    config = EngineConfig(
        model_path=str(DEFAULT_MODEL),
        device="inf2.xlarge",
        tensor_parallel_size=1,
        dtype="bfloat16",
        quantization=quantization,  # type: ignore[arg-type]
        max_model_len=64,
        max_num_seqs=1,
        max_num_batched_tokens=64,
        max_num_queued_reqs=1,
        block_size=32,
        enable_prefix_caching=False,
        device_memory_utilization=0.9,
        num_blocks_override=8,
        cpu_threads=1,
        kernel_cache_dir=str(pytestconfig.cache.mkdir("kernels")),
    )
    runner = load_engine(config, lambda _: None).runner
    runner.time_instructions(True)
    runner.warm_up()
    assert runner.timed is not None
    used = {kernel.name for kernel in runner.timed[0].kernels}
    runner.close()
    assert len(used) > 5
    assert used <= {kernel.name for kernel in kernels()}


def test_an_architecture_without_levels_brings_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An image for linux/arm64 is built all the same, and its hosts compile at the first start."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    compile_levels(tmp_path)
    assert list(tmp_path.iterdir()) == []
