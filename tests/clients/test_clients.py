"""Clients of others, unmodified, against a live server: each suite of `suites/` and `node/`.

`make client-test` makes an environment for them in `.venv/clients`; without it they are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import Server, running_server

HERE = Path(__file__).parent
CLIENTS = Path(os.environ.get("CLIENTS", Path(sys.prefix) / "clients"))  # their environment
PYTHON, MODULES = CLIENTS / "bin" / "python", CLIENTS / "node" / "node_modules"
SUITES = sorted((HERE / "suites").glob("check_*.py"))
NODE_SUITES = sorted((HERE / "node").glob("*.test.mjs"))
PATIENCE_S = 1200  # for one suite, which only a failure reaches

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def server(kernel_cache: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--kernel-cache-dir", kernel_cache, "--data-dir", str(tmp_path_factory.mktemp("data")))
    options += ("--enable-tokenizer-info-endpoint",)  # lm-eval's
    with running_server(DEFAULT_MODEL, "--disable-access-log", *options, program="neuronserve") as running:
        yield running


def run(server: Server, directory: Path, *command: str) -> None:
    """Run a suite in a directory of its own; what it has written is shown where it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTEST_ADDOPTS"}}
    ended = subprocess.run(
        command,
        cwd=directory,
        env={**environment, "NEURONSERVE_URL": server.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout


def names(suites: Sequence[Path]) -> list[str]:
    return [suite.name.split(".")[0].removeprefix("check_") for suite in suites]


@pytest.mark.skipif(not PYTHON.exists(), reason="the clients are not installed: `make client-test`")
@pytest.mark.parametrize("suite", SUITES, ids=names(SUITES))
def test_a_client_in_python(server: Server, tmp_path: Path, suite: Path) -> None:
    options = ("-q", "-c", str(suite.parent / "pytest.ini"), "--rootdir", str(suite.parent), "--disable-warnings")
    run(server, tmp_path, str(PYTHON), "-m", "pytest", *options, str(suite))


@pytest.mark.skipif(not MODULES.exists(), reason="the clients for Node are not installed: `make client-test`")
@pytest.mark.parametrize("suite", NODE_SUITES, ids=names(NODE_SUITES))
def test_a_client_in_node(server: Server, tmp_path: Path, suite: Path) -> None:
    shutil.copy(suite, tmp_path)
    (tmp_path / "node_modules").symlink_to(MODULES)  # modules are looked for beside the file
    run(server, tmp_path, "node", "--test", str(tmp_path / suite.name))
