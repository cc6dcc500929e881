"""Engines that start together on one cache of kernels: each function is compiled once, and all of them serve."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import httpx
import pytest

from neuronserve.server.kernels.isa.cache import source_hash
from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import Server, running_server
from tests.api.test_life import TEXT

RANKS = ("0", "1")
LACKING = {"init_control", "stop_workers"}  # compiled in a second or two each
# Not what an engine says of another that it waits for.
COMPILING = re.compile(r"^(?!.*waiting for ).*compiling (\w+) \(\d+/\d+\)$", re.MULTILINE)


@pytest.mark.slow
def test_engines_that_lack_the_same_functions_compile_each_once(
    real_server: Server, kernel_cache: str, tmp_path: Path
) -> None:
    """The first process compiles, with its helper, while the others wait; each loads the result."""
    del real_server  # it has filled the cache
    shutil.copytree(Path(kernel_cache, source_hash()), tmp_path / source_hash())
    for name in LACKING:
        for file in list(tmp_path.rglob(f"*.{name}-*")):
            file.unlink()

    def start() -> list[str]:
        """Functions that are compiled until all engines answer."""
        engines = ("--data-parallel-size", str(len(RANKS)), "--kernel-cache-dir", str(tmp_path))
        with running_server(DEFAULT_MODEL, *engines, program="neuronserve") as server:
            for rank in RANKS:
                body, headers = {"prompt": "a", "max_tokens": 2}, {"X-data-parallel-rank": rank}
                answer = httpx.post(server.url + TEXT, json=body, headers=headers, timeout=60)
                assert answer.status_code == 200, answer.text
            return COMPILING.findall(server.log)

    assert sorted(start()) == sorted(LACKING)
    assert start() == []
