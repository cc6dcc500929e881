"""pytest fixture `neuronserve_server`: one server for a session, started when the first test requests it.

Workers of pytest-xdist share it: the first one starts it, and ends it when no other worker uses it.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from neuronserve.testing import Server

OPTIONS = {
    "model": "checkpoint directory, GGUF file or hub id (default: the model that is shipped)",
    "device": "instance to emulate",
    "pace": "host or device: as fast as this machine computes, or as the accelerator would",
    "args": "further flags of neuronserve serve",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --neuronserve-NAME, which overrides neuronserve_NAME of the ini file."""
    group = parser.getgroup("neuronserve", "the server of the fixture neuronserve_server")
    for name, what in OPTIONS.items():
        group.addoption(f"--neuronserve-{name}", metavar=name.upper(), help=what)
        parser.addini(f"neuronserve_{name}", what, default="")


@pytest.fixture(scope="session")
def neuronserve_server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server, or use the shared one. A client needs its `base_url`, `model` and `api_key`."""
    if not hasattr(pytestconfig, "workerinput"):  # no worker of xdist
        with _started(pytestconfig) as server:
            yield server
        return
    with _shared(pytestconfig, tmp_path_factory.getbasetemp().parent) as server:
        yield server


@contextlib.contextmanager
def _started(config: pytest.Config) -> Iterator[Server]:
    """Run a server. What a long start reports is not captured, or the first test would seem to hang."""
    from neuronserve.testing import running_server  # not before a test needs it

    def option(name: str) -> str:
        return str(config.getoption(f"neuronserve_{name}") or config.getini(f"neuronserve_{name}"))

    model, device, pace = (option(name) or None for name in ("model", "device", "pace"))
    capture = config.pluginmanager.getplugin("capturemanager")  # None with -p no:capture
    with contextlib.ExitStack() as own:
        with contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled():
            server = own.enter_context(
                running_server(model, device=device, pace=pace, args=shlex.split(option("args")))
            )
        yield server


@contextlib.contextmanager
def _shared(config: pytest.Config, directory: Path) -> Iterator[Server]:
    """Yield the server that workers share by `directory`. A lock ends with its process, also with a killed one."""
    from fcntl import LOCK_EX, LOCK_SH, flock

    from neuronserve.testing import Server

    file = directory / "neuronserve-server.json"
    with contextlib.ExitStack() as own:
        users = own.enter_context(file.with_suffix(".users").open("w"))
        with file.with_suffix(".start").open("w") as start:
            flock(start, LOCK_EX)
            flock(users, LOCK_SH)
            if not file.exists():
                file.write_text(json.dumps(asdict(own.enter_context(_started(config)))))
                own.callback(file.unlink)
                own.callback(flock, users, LOCK_EX)  # runs first: waits until no other worker uses the server
        yield Server(**json.loads(file.read_text()))
