"""What the parity tests share: a checkpoint of each tiny shape, and transformers' model of it, each made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tools.golden.golden_file import write_golden_checkpoint
from tools.golden.oracle import Oracle


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
