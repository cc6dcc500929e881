"""Servers that the API tests share: one with the fake model, one with the model that the project ships."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.openai_schema import validated_answers
from tests.api.serving import Server, running_server, write_checkpoint


@pytest.fixture(autouse=True)
def openai_schema() -> Iterator[None]:
    """Every answer that any of these tests gets is held to OpenAI's schema."""
    with validated_answers():
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    """A file; while it is there, requests get their first tokens and no more from a server on `hold:FILE`."""
    file = tmp_path / "hold"
    file.touch()
    return file


@pytest.fixture(scope="session")
def server(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(
        checkpoint,
        "--disable-access-log",
        "--enable-tokenizer-info-endpoint",
        "--data-dir",
        str(tmp_path_factory.mktemp("data")),
    ) as running:
        yield running


@pytest.fixture(scope="session")
def real_server(kernel_cache: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--kernel-cache-dir", kernel_cache, "--data-dir", str(tmp_path_factory.mktemp("real-data")))
    with running_server(DEFAULT_MODEL, "--disable-access-log", *options, program="neuronserve") as running:
        yield running


@pytest.fixture
def client(real_server: Server) -> Iterator[openai.OpenAI]:
    """OpenAI's own client of the shipped model; it checks every answer against its types."""
    with openai.OpenAI(
        base_url=f"{real_server.url}/v1", api_key="any", max_retries=0, timeout=120, _strict_response_validation=True
    ) as made:
        yield made


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client
