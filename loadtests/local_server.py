"""A local server for a run, as a process: the commands that start one, and its address while it runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from neuronserve import COMMAND, testing

from .errors import StartError


def neuronserve_command(arguments: Sequence[str]) -> list[str]:
    """Return the command `neuronserve serve ...` on a free port, with this interpreter."""
    return [*COMMAND, "serve", *arguments, "--port", "0", "--disable-access-log"]


def mock_command(ttft_ms: float, itl_ms: float, max_model_len: int = 8192) -> list[str]:
    """Return the command of the scripted server, with this interpreter."""
    flags = {"--ttft-ms": ttft_ms, "--itl-ms": itl_ms, "--max-model-len": max_model_len}
    return [
        sys.executable,
        "-m",
        "neuronserve.loadtests.mock_server",
        *(str(word) for flag in flags.items() for word in flag),
    ]


@contextlib.contextmanager
def running(command: Sequence[str], timeout_s: float = testing.START_TIMEOUT_S) -> Iterator[str]:
    """Run a command with `--ready-file` and yield its URL. Raises StartError with the last lines of its log."""
    with contextlib.ExitStack() as stack:
        try:
            ready = stack.enter_context(testing.running(command, timeout_s))
        except testing.ServerFailed as error:
            raise StartError(str(error)) from error
        yield ready["url"]
