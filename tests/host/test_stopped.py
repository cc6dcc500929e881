"""Detection of stopped processes: real ones, in states that look alike."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from neuronserve.server.host.stopped import cpu_when_stopped
from tests.api.serving import until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def test_a_process_is_stopped_until_it_is_continued(sleeper: subprocess.Popen[bytes]) -> None:
    assert cpu_when_stopped(sleeper.pid) is None
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: cpu_when_stopped(sleeper.pid) is not None)
    assert cpu_when_stopped(sleeper.pid) == cpu_when_stopped(sleeper.pid)
    sleeper.send_signal(signal.SIGCONT)
    until(lambda: cpu_when_stopped(sleeper.pid) is None)


def test_a_process_that_has_ended_is_not_stopped(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    assert cpu_when_stopped(sleeper.pid) is None
