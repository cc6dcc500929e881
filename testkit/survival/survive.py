"""Run of a client's command through each trial on one server, and the verdict on its end."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from neuronserve.testing import Server, ServerFailed, running_server

from ...server.errors import StartError
from ...server.monitor.scrape import Endpoint
from .trials import UNDISTURBED, Trial, rules

Verdict = Literal["survived", "failed", "hung", "wrong output", "not met"]
GOOD: frozenset[Verdict] = frozenset({"survived", "not met"})
LAST_CHARS = 500  # of a failed command's stderr
DIRECT = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}  # a proxy cannot reach this host
INJECTED = "neuronserve:injected_faults_total"


class ClientFailed(StartError):
    """The command fails without any fault, so it cannot be judged."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the command."""

    exit_code: int | None  # None = it did not end in time
    seconds: float
    output: bytes  # stdout
    errors: str  # the end of stderr


@dataclass(frozen=True, slots=True)
class Outcome:
    """A trial, the number of requests that met its fault, and the end of the command."""

    trial: Trial
    num_met: int
    run: Run
    is_equal: bool | None  # output equals the undisturbed one; None if two undisturbed outputs differ
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Plan:
    """A command and its trials."""

    command: Sequence[str]
    environment: Mapping[str, str]
    trials: Sequence[Trial]
    timeout_s: float
    model: str | None = None
    flags: Sequence[str] = ()  # of the server


def survive(plan: Plan) -> Iterator[Outcome]:
    """Yield the outcomes. Raises StartError if the server or the undisturbed command fails."""
    with tempfile.TemporaryDirectory(prefix="neuronserve-survive-") as directory:
        file = Path(directory) / "rules.yaml"
        file.write_text(rules(plan.trials))
        try:
            with running_server(plan.model, args=[*plan.flags, "--inject-faults", str(file)]) as server:
                yield from _outcomes(server, plan)
        except ServerFailed as error:
            raise StartError(str(error)) from error


def _outcomes(server: Server, plan: Plan) -> Iterator[Outcome]:
    def run(key: str) -> Run:
        found = Server(server.url, server.model, server.pid, key)
        return _run(plan.command, {**plan.environment, **found.env, **DIRECT}, plan.timeout_s)

    expected = _undisturbed(run)
    endpoint = Endpoint(server.url)
    for trial in plan.trials:
        ended = run(trial.api_key)
        num_met = int(endpoint.scrape().total(INJECTED, rule=trial.name))
        is_equal = None if expected is None else ended.output == expected
        yield Outcome(trial, num_met, ended, is_equal, judged(trial, num_met, ended, is_equal))


def _undisturbed(run: Callable[[str], Run]) -> bytes | None:
    """Return the command's output; None if two outputs differ. Raises ClientFailed."""
    first, second = (run(f"survive-{UNDISTURBED}") for _ in range(2))
    for each in (first, second):
        if each.exit_code != 0:
            how = "does not end" if each.exit_code is None else f"ends with code {each.exit_code}"
            raise ClientFailed(f"the command {how} without any fault:\n{each.errors}".rstrip())
    return first.output if first.output == second.output else None


def judged(trial: Trial, num_met: int, run: Run, is_equal: bool | None) -> Verdict:
    """Return the verdict on a trial."""
    if run.exit_code is None:
        return "hung"
    if run.exit_code != 0:
        return "survived" if trial.may_fail else "failed"
    if is_equal is False:
        return "wrong output"
    return "survived" if num_met else "not met"


def _run(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> Run:
    """Run the command in its own process group, so that all its processes can be killed."""
    begin = time.monotonic()
    try:
        process = subprocess.Popen(
            list(command),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise ClientFailed(f"cannot run {command[0]!r}: {error.strerror}") from error
    try:
        output, errors = process.communicate(timeout=timeout_s)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        code = None
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return Run(code, time.monotonic() - begin, output, errors.decode("utf-8", "replace")[-LAST_CHARS:])
