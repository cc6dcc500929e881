from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.kernels.checks import use_checks
from server.kernels.isa import jit
from server.kernels.workers import WorkerPool
from server.settings.engine import EngineSettings
from server.settings.sources import load_settings


@pytest.fixture(scope="session", autouse=True)
def _kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    if load_settings(EngineSettings, {}).kernel_checks:
        use_checks()
    jit.use_cache(str(Path(tmp_path_factory.getbasetemp()) / "kernels"))


@pytest.fixture(scope="session", params=[1, 2, 3], ids=lambda n: f"{n}-threads")
def pool(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    workers = WorkerPool(request.param)
    yield workers
    workers.close()


@pytest.fixture(scope="session")
def two_threads() -> Iterator[WorkerPool]:
    workers = WorkerPool(2)
    yield workers
    workers.close()
