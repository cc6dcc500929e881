"""A contender that lives in another process and measures there: one JSON line in, one out.

The child may print anything; replies are the lines that begin with PREFIX. The first one means that it is ready.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.process import Hosted, Process
from benchmarks.records import BenchmarkError, Case, Figures
from neuronserve.server.typed_json import JsonError, decode

PREFIX = "RESULT "


class WorkerContender(Hosted):
    """A child that loads a model once and then measures the cases that it receives."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        super().__init__(name)
        self._command, self._environment = command, environment

    def start(self) -> None:
        self._process = Process(self._command, self._environment, has_pipes=True)
        ready = self._answer()
        self._about = {key: str(value) for key, value in ready.items()}

    def measure(self, case: Case, seed: int) -> Figures:
        process = self._running()
        try:
            process.stdin.write(json.dumps({"kind": case.kind, "size": case.size, "seed": seed}).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            raise BenchmarkError(f"{self.name} has ended:\n{process.last_words()}") from error
        return {key: float(value) for key, value in self._answer().items()}

    def _running(self) -> Process:
        if self._process is None:
            raise BenchmarkError(f"{self.name} was not started")
        return self._process

    def _answer(self) -> dict[str, Any]:
        process = self._running()
        for line in process.stdout:
            text = line.decode("utf-8", "replace").strip()
            if text.startswith(PREFIX):
                return read_reply(self.name, text)
        raise BenchmarkError(f"{self.name} ended without an answer:\n{process.last_words()}")


def read_reply(name: str, line: str) -> dict[str, Any]:
    """Return the object after PREFIX; raises BenchmarkError without one, or for an error of the child."""
    try:
        answer = decode(line.removeprefix(PREFIX), dict[str, Any])
    except JsonError as error:
        raise BenchmarkError(f"{name}: {line[:80]!r} {error}") from error
    if "error" in answer:
        raise BenchmarkError(f"{name}: {answer['error']}")
    return answer
