"""Processes that are started while their fork server ends."""

from __future__ import annotations

import multiprocessing

import pytest

from neuronserve.server.host.fork_server import start_process


class Refused(multiprocessing.Process):
    """A process whose fork server refuses some connections before another one takes its place."""

    def __init__(self, errors: list[Exception]) -> None:
        super().__init__()
        self.errors = errors

    def start(self) -> None:
        if self.errors:
            raise self.errors.pop()


def test_a_start_is_tried_again_while_a_killed_fork_server_ends() -> None:
    process = Refused([ConnectionRefusedError(), EOFError(), BrokenPipeError()])
    start_process(process)
    assert not process.errors


def test_other_errors_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BlockingIOError):
        start_process(Refused([BlockingIOError(11, "no more processes")]))
    monkeypatch.setattr("neuronserve.server.host.fork_server.FORK_SERVER_END_S", -1.0)
    with pytest.raises(ConnectionRefusedError):
        start_process(Refused([ConnectionRefusedError()]))
