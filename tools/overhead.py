"""Cost of the server's work beside answering, for each token, step or request: `python -m tools.overhead [NAME ...]`.

Each row compares work with one feature and the same work without it, in turns, in one process, in processor seconds:

- journal: delivering a token to its reader through the journal that keeps it in case an engine dies - heartbeat: a step
for which the engine writes its deadline - keys: a request through the guard, with a key among many that has limits -
limits: counting a token towards its key's limit - turns: a request that waits in fair turns among other keys instead of
in one queue - account: counting a token for its key's turn

A turn is a step of a full batch. The rows include features that a server cannot turn off.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from neuronserve.server.api.keys.guard import Guard
from neuronserve.server.api.keys.key import Key, KeyLimits, KeysConfig, digest_of
from neuronserve.server.api.keys.ring import KeyRing
from neuronserve.server.api.keys.use import Accounts
from neuronserve.server.clock import MonotonicClock
from neuronserve.server.engine.loop import Pending
from neuronserve.server.engine.watched import WatchedRunner
from neuronserve.server.host.shared_file import SharedFile
from neuronserve.server.kv_cache.hashing import HashChain
from neuronserve.server.kv_cache.sequence_blocks import SequenceBlocks
from neuronserve.server.link.heartbeat import NUM_BYTES, Heartbeat, StepLimit
from neuronserve.server.link.journal import Journal, OpenSequence
from neuronserve.server.link.stream import TokenStream
from neuronserve.server.scheduler import sequence
from neuronserve.server.scheduler.fair_queue import FairQueue
from neuronserve.server.scheduler.queue import OrderedQueue
from neuronserve.server.types import Charge, Request, SamplingParams, StepPlan, StepResult, TokenEvent

TURNS = 400  # in one measurement
ROUNDS = 15
NUM_KEYS = 100
SPENDING = KeyLimits(requests_per_minute=10**9, tokens_per_minute=10**12)  # limits that are never reached
Work = Callable[[int], float]  # (sequences) -> processor seconds of TURNS turns, or of TURNS requests
Unit = Literal["token", "step", "request"]


@dataclass(frozen=True, slots=True)
class Feature:
    """One row: work with a feature of the server and without it, and its unit."""

    unit: Unit
    included: Work
    omitted: Work

    def seconds(self, num_seqs: int) -> float:
        """Return the median of the additional time of one unit."""
        num_units = TURNS * num_seqs if self.unit == "token" else TURNS
        taken = (self.included(num_seqs) - self.omitted(num_seqs) for _ in range(ROUNDS))
        return statistics.median(taken) / num_units


class _NoRunner:
    """A Runner (server/engine/loop.py) that takes no time."""

    def submit(self, plan: StepPlan) -> Pending:
        return lambda: StepResult(plan.step_id, {}, 0.0)


def _turns(num_seqs: int) -> list[list[TokenEvent]]:
    return [[TokenEvent(f"r{i}", 7, turn, 0.0) for i in range(num_seqs)] for turn in range(TURNS)]


def _requests(num_seqs: int) -> list[Request]:
    """Return requests with a key each."""
    sampling = SamplingParams(max_tokens=TURNS + 1)
    return [Request(f"r{i}", (1, 2, 3), sampling, float(i), tenant=f"key-{i}") for i in range(num_seqs)]


def _open_sequences(num_seqs: int) -> list[OpenSequence]:
    return [OpenSequence(each, TokenStream([each.request_id], lambda _: None)) for each in _requests(num_seqs)]


def _with_journal(num_seqs: int) -> float:
    """Look readers up in the journal, which keeps every token."""
    journal, charge = Journal(), Charge(5)
    for each in _open_sequences(num_seqs):
        journal.add(each)
    turns, begin = _turns(num_seqs), time.thread_time()
    for events in turns:
        for taken, event, shown in [journal.take(event, charge) for event in events]:
            if taken is not None:
                taken.stream.put(event, shown)
    return time.thread_time() - begin


def _without_journal(num_seqs: int) -> float:
    """Look readers up by their id only."""
    charge, streams = Charge(5), {each.request.request_id: each.stream for each in _open_sequences(num_seqs)}
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
        runner.submit(plan)()
    return time.thread_time() - begin


def _with_heartbeat(_: int) -> float:
    with (
        contextlib.closing(SharedFile("heartbeat", NUM_BYTES)) as file,
        contextlib.closing(Heartbeat(file)) as heartbeat,
    ):
        return _steps(WatchedRunner(_NoRunner(), heartbeat, StepLimit(0.01), MonotonicClock()))


def _without_heartbeat(_: int) -> float:
    return _steps(_NoRunner())


def _ring() -> KeyRing:
    keys = tuple(Key(f"key-{i}", digest_of(f"secret-{i}"), limits=SPENDING) for i in range(NUM_KEYS))
    return KeyRing(KeysConfig(fixed=keys), Accounts(MonotonicClock()))


async def _no_app(_: Scope, __: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _sent(_: Message) -> None:
    pass


def _calls(app: ASGIApp) -> float:
    """Return processor seconds for requests that all bring the last key."""
    headers = [(b"authorization", f"Bearer secret-{NUM_KEYS - 1}".encode())]
    kind = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}

    async def call() -> float:
        begin = time.thread_time()
        for _ in range(TURNS):
            await app({**kind}, _nothing, _sent)
        return time.thread_time() - begin

    return asyncio.run(call())


def _with_keys(_: int) -> float:
    return _calls(Guard(_no_app, _ring()))


def _without_keys(_: int) -> float:
    return _calls(_no_app)


def _with_limits(num_seqs: int) -> float:
    """Count tokens sequence by sequence, as a request's deltas are counted."""
    use, begin = _ring().named("key-0").use, time.thread_time()
    use.limit(SPENDING)
    for _ in range(TURNS * num_seqs):
        use.generated(1)
    return time.thread_time() - begin


def _nothing_counted(num_seqs: int) -> float:
    begin = time.thread_time()
    for _ in range(TURNS * num_seqs):
        pass
    return time.thread_time() - begin


def _waiting(num_seqs: int) -> list[sequence.Sequence]:
    return [sequence.Sequence(each, SequenceBlocks(HashChain(16, ""), num_groups=1)) for each in _requests(num_seqs)]


def _with_turns(num_seqs: int) -> float:
    return _admissions(FairQueue(), _waiting(num_seqs))


def _without_turns(num_seqs: int) -> float:
    return _admissions(OrderedQueue(), _waiting(num_seqs))


def _admissions(queue: FairQueue | OrderedQueue, seqs: Sequence[sequence.Sequence]) -> float:
    """Return processor seconds for admissions: the next sequence leaves, and waits again beside all others."""
    for each in seqs:
        queue.add(each)
    begin = time.thread_time()
    for _ in range(TURNS):
        first = queue.first
        queue.remove(first)
        queue.add(first)
    return time.thread_time() - begin


def _with_account(num_seqs: int) -> float:
    queue, seqs = FairQueue(), _waiting(num_seqs)
    for each in seqs:
        queue.add(each)
    begin = time.thread_time()
    for _ in range(TURNS):
        for each in seqs:
            queue.serve(each, 1)
    return time.thread_time() - begin


FEATURES: dict[str, Feature] = {
    "journal": Feature("token", _with_journal, _without_journal),
    "heartbeat": Feature("step", _with_heartbeat, _without_heartbeat),
    "keys": Feature("request", _with_keys, _without_keys),
    "limits": Feature("token", _with_limits, _nothing_counted),
    "turns": Feature("request", _with_turns, _without_turns),
    "account": Feature("token", _with_account, _nothing_counted),
}


def rows(names: Sequence[str], num_seqs: int, rates: dict[Unit, float]) -> Iterator[str]:
    """Yield a line for each row; `rates` is how many of each unit a server processes in a second."""
    for name in names:
        feature = FEATURES[name]
        seconds, rate = feature.seconds(num_seqs), rates[feature.unit]
        share = f"{seconds * rate:.3%} of a core at {rate:g} {feature.unit}s/s"
        yield f"{name}: {seconds * 1e6:.2f} us a {feature.unit}, {share}"


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tools.overhead", description=__doc__, formatter_class=form)
    parser.add_argument("names", nargs="*", choices=[*FEATURES, []], metavar="NAME", help=", ".join(FEATURES))
    parser.add_argument("--tokens-per-s", type=float, default=5000, help="tokens a second of the server")
    parser.add_argument("--tokens-per-request", type=float, default=100)
    parser.add_argument("--seqs", type=int, default=64, help="sequences in a step, and requests that wait")
    args = parser.parse_args()
    tokens = args.tokens_per_s
    rates: dict[Unit, float] = {
        "token": tokens,
        "step": tokens / args.seqs,
        "request": tokens / args.tokens_per_request,
    }
    for row in rows(args.names or list(FEATURES), args.seqs, rates):
        print(row)


if __name__ == "__main__":
    main()
