"""Servers that the console's tests share, with the fake model that repeats the last message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.serving import Server, running_server, write_checkpoint
from tests.console.checkpoint import write_echo_checkpoint

KEYS = ("--api-key", "sesame", "--admin-api-key", "master")


@pytest.fixture(scope="session")
def echo_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_echo_checkpoint(tmp_path_factory.mktemp("echo"))


@pytest.fixture(scope="session")
def echo(echo_checkpoint: Path) -> Iterator[Server]:
    """A server whose model repeats the last message, without keys."""
    with running_server(echo_checkpoint, "--device", "echo") as running:
        yield running


@pytest.fixture(scope="session")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with keys whose requests stay open for as long as a test may need."""
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("slow"))
    with running_server(checkpoint, "--device", "slow:0.1", *KEYS) as running:
        yield running
