"""A running `neuronserve stage`."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.api.serving import ROOT, environment


@contextmanager
def running_stage(model: Path, kernel_cache: str, key: Path, under: Sequence[str] = ()) -> Iterator[str]:
    """A pipeline stage that listens on loopback, until the end of the block; yields its address.

    `under` is a command that runs the rest of its arguments, such as one that enters a control group.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    argv = ["stage", str(model), "--listen", address, "--pipeline-key-file", str(key)]
    argv = [*under, sys.executable, "-m", "neuronserve", *argv, "--kernel-cache-dir", kernel_cache]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT, env=environment())
    assert process.stdout is not None
    try:
        assert b"ready" in process.stdout.readline()
        yield address
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
