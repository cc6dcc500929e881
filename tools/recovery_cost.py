"""What being able to heal costs while nothing fails: `python -m tools.recovery_cost [--tokens-per-s 5000] [--seqs 64]`.

The journal of what was given out cannot be turned off, since it also says who gets a token. So both sides of it are
measured here, in turns, in one process: a turn's tokens handed to their readers with the journal, and without, and the
heartbeat that an engine writes. A turn is a step of a full batch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

from server.clock import MonotonicClock
from server.engine.watched import WatchedRunner
from server.link.heartbeat import Heartbeat, StepLimit
from server.link.journal import Journal, OpenSequence
from server.link.stream import Stream
from server.types import Charge, Request, SamplingParams, StepPlan, StepResult, TokenEvent

TURNS = 400  # of one measurement
ROUNDS = 15


class _NoRunner:
    """Implements server.engine.loop.Runner, in no time."""

    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult(plan.step_id, {}, 0.0)


def _turns(num_seqs: int) -> list[list[TokenEvent]]:
    return [[TokenEvent(f"r{i}", 7, turn, 0.0) for i in range(num_seqs)] for turn in range(TURNS)]


def _sequences(num_seqs: int) -> list[OpenSequence]:
    sampling = SamplingParams(max_tokens=TURNS + 1)
    requests = [Request(f"r{i}", (1, 2, 3), sampling, 0.0) for i in range(num_seqs)]
    return [OpenSequence(each, Stream([each.request_id], lambda _: None)) for each in requests]


def with_journal(num_seqs: int) -> float:
    """Seconds of the processor to hand out the turns, looking readers up in the journal, which keeps every token."""
    journal, charge = Journal(), Charge(5)
    for sequence in _sequences(num_seqs):
        journal.add(sequence)
    turns, begin = _turns(num_seqs), time.thread_time()
    for events in turns:
        for taken, event, shown in [journal.take(event, charge) for event in events]:
            if taken is not None:
                taken.stream.put(event, shown)
    return time.thread_time() - begin


def without_journal(num_seqs: int) -> float:
    """The same, with readers by their id and no more."""
    charge, streams = Charge(5), {each.request.request_id: each.stream for each in _sequences(num_seqs)}
    turns, begin = _turns(num_seqs), time.thread_time()
    for events in turns:
        for event in events:
            stream = streams.get(event.request_id)
            if stream is not None:
                stream.put(event, charge)
    return time.thread_time() - begin


def _steps(runner: _NoRunner | WatchedRunner) -> float:
    plan, begin = StepPlan(0, (), ()), time.thread_time()
    for _ in range(TURNS):
        runner.execute(plan)
    return time.thread_time() - begin


def median_difference_s(one: Callable[[], float], other: Callable[[], float]) -> float:
    """Seconds by which `one` takes longer than `other`, measured in turns."""
    return statistics.median(one() - other() for _ in range(ROUNDS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens-per-s", type=float, default=5000, help="of the whole server")
    parser.add_argument("--seqs", type=int, default=64, help="sequences in a step")
    asked = parser.parse_args()
    seqs, rate = asked.seqs, asked.tokens_per_s
    token_s = median_difference_s(lambda: with_journal(seqs), lambda: without_journal(seqs)) / (TURNS * seqs)
    with tempfile.TemporaryDirectory() as directory:
        heartbeat = Heartbeat(directory)
        watched = WatchedRunner(_NoRunner(), heartbeat, StepLimit(0.01), MonotonicClock())
        step_s = median_difference_s(lambda: _steps(watched), lambda: _steps(_NoRunner())) / TURNS
        heartbeat.close()
    print(f"journal: {token_s * 1e6:.2f} us a token, {token_s * rate:.2%} of a core at {rate:g} tokens/s")
    print(f"heartbeat: {step_s * 1e6:.2f} us a step, {step_s * rate / seqs:.3%} of a step at that rate")


if __name__ == "__main__":
    main()
