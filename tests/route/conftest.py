"""The files of the fake model."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.serving import Server, running_server, write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def fake_server(checkpoint: Path) -> Iterator[Server]:
    with running_server(checkpoint) as running:
        yield running


@pytest.fixture
def free_ports() -> list[int]:
    """Two ports that nobody uses now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        return [each.getsockname()[1] for each in sockets]
