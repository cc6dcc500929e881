"""The checkpoint of the fake model, for all tests of the test kit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.serving import write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
