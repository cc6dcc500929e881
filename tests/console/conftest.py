"""What the console's tests share: servers with a fake model that repeats the last message, and a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.serving import Server, running_server, write_checkpoint
from tests.console.browsing import ADMIN, CHROMIUM, KEY, Page
from tests.console.checkpoint import write_echo_checkpoint

PATIENCE_MS = 60_000
KEYS = ("--api-key", KEY, "--admin-api-key", ADMIN)


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="the extra `ui` is not installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Page]:
    """A page of a fresh profile. Nothing that it does may leave the host, break the policy or raise."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    context.set_default_timeout(PATIENCE_MS)
    opened = context.new_page()
    hosts: set[str] = set()
    faults: list[str] = []
    opened.on("request", lambda request: hosts.add(request.url.split("/")[2].split(":")[0]))
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda line: faults.append(line.text) if "Security Policy" in line.text else None)
    yield opened
    context.close()
    assert hosts <= {"127.0.0.1"} | {""}, f"the page has asked {hosts}"
    assert not faults
