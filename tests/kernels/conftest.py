from __future__ import annotations

from collections.abc import Iterator

import pytest

from neuronserve.server.kernels.checks import use_checks
from neuronserve.server.kernels.isa import cache
from neuronserve.server.kernels.workers import WorkerPool
from neuronserve.server.settings.engine import EngineSettings
from neuronserve.server.settings.sources import load_settings
from tests.depth import representative


@pytest.fixture(scope="session", autouse=True)
def _kernel_cache(kernel_cache: str) -> None:
    if load_settings(EngineSettings, ()).kernel_checks:
        use_checks()
    cache.use_cache(kernel_cache)


@pytest.fixture(scope="session", params=representative([1, 2, 3], 2), ids=lambda n: f"{n}-threads")
def pool(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    workers = WorkerPool(request.param)
    yield workers
    workers.close()


@pytest.fixture(scope="session")
def two_threads() -> Iterator[WorkerPool]:
    workers = WorkerPool(2)
    yield workers
    workers.close()
