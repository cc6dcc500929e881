"""Fixtures of tests in more than one folder."""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import numpy as np
import pytest

from neuronserve.server.config import EngineConfig
from neuronserve.server.config.formats import Dtype
from neuronserve.server.host.isa import BY_ISA
from neuronserve.server.settings.engine import EngineSettings
from neuronserve.server.settings.sources import load_settings

# A shared machine may stall for longer than any deadline of one example; no test here is about time.
unhurried: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("quick", max_examples=30, derandomize=True, **unhurried)
hypothesis.settings.register_profile("thorough", max_examples=300, print_blob=True, **unhurried)
hypothesis.settings.load_profile("quick")  # `make test-all` asks for the other with --hypothesis-profile

MAX_TOKENS = 512


FORCED_ISA = load_settings(EngineSettings, ()).isa
if FORCED_ISA is not None:  # here, since conftests of folders import the compiler, which reads its environment then
    os.environ.update(BY_ISA[FORCED_ISA].environment)
    del os.environ["NEURONSERVE_ISA"]  # tests of settings want their own


def pytest_configure() -> None:
    """Refuse an instruction set of NEURONSERVE_ISA that this process does not compile for."""
    if FORCED_ISA is not None:
        from neuronserve.server.kernels.dispatch import host_isas  # reads the environment
        from neuronserve.server.kernels.isa.target import host_features

        if lacks := BY_ISA[FORCED_ISA].lacks(host_features()):
            raise pytest.UsageError(f"NEURONSERVE_ISA is {FORCED_ISA}: this host lacks {', '.join(lacks)}")
        assert host_isas()[0] == FORCED_ISA, "numba was imported before the environment was set"


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it of a job in the background, and all it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def kernel_cache(pytestconfig: pytest.Config) -> str:
    """Directory of compiled kernels, shared by all tests of this session and of later ones."""
    return str(pytestconfig.cache.mkdir("kernels"))


@pytest.fixture(scope="session", autouse=True)
def _patience() -> None:
    """An answer takes what a busy machine takes: httpx's default of five seconds is not for tests."""
    default = inspect.signature(httpx.get).parameters["timeout"].default
    for part in ("connect", "read", "write", "pool"):
        setattr(default, part, 120.0)


@pytest.fixture(scope="session")
def engine_logits(kernel_cache: str) -> Callable[..., np.ndarray]:
    """(directory, dtype, tensor_parallel_size, token_ids, block_size=32) -> logits `[tokens, vocab]` by the paged path.

    Each engine is loaded once a session; compiled kernels are kept from one session to the next.
    """
    from neuronserve.server.engine.load.loading import (
        load_engine,  # takes a second, which tests that need no engine should not pay
    )

    @cache
    def engine(directory: Path, dtype: Dtype, tensor_parallel_size: int, block_size: int) -> Any:
        config = EngineConfig(
            model_path=str(directory),
            device="inf2.48xlarge",
            tensor_parallel_size=tensor_parallel_size,
            dtype=dtype,
            max_model_len=MAX_TOKENS,
            max_num_seqs=2,
            max_num_batched_tokens=64,  # so that layers with a window have tables of their own
            max_num_queued_reqs=2,
            block_size=block_size,
            enable_prefix_caching=False,
            device_memory_utilization=0.9,
            num_blocks_override=None,
            cpu_threads=2,
            kernel_cache_dir=kernel_cache,
            kernel_checks=load_settings(EngineSettings, ()).kernel_checks,  # NEURONSERVE_KERNEL_CHECKS
        )
        return load_engine(config, lambda *_: None)

    def logits(
        directory: Path, dtype: Dtype, tensor_parallel_size: int, token_ids: Sequence[int], block_size: int = 32
    ) -> np.ndarray:
        values: np.ndarray = engine(directory, dtype, tensor_parallel_size, block_size).runner.logits(token_ids)
        assert values.dtype == np.float32
        return values

    return logits
