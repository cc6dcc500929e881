"""The place of the fork server's socket."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neuronserve.server.host.fork_server import MAX_NAME_BYTES, SOCKET_NAME_BYTES
from tests.api.serving import ROOT, environment

PROGRAM = """
import tempfile
from neuronserve.server.host.fork_server import engine_context
process = engine_context().Process(target=int)
process.start()
process.join()
print(process.exitcode, tempfile.gettempdir())
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS forks no process")
@pytest.mark.parametrize("is_long", [False, True])
def test_a_temporary_directory_may_have_a_longer_name_than_a_socket(is_long: bool) -> None:
    longest = MAX_NAME_BYTES - SOCKET_NAME_BYTES
    short = f"/tmp/{os.getpid()}"
    place = Path(f"{short}{'d' * (longest - len(short) + is_long)}")
    place.mkdir()
    try:
        variables = environment(TMPDIR=str(place))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=variables, cwd=ROOT, capture_output=True, text=True, check=False
        )
    finally:
        place.rmdir()
    assert done.stdout.split() == ["0", "/tmp" if is_long else str(place)], done.stderr
