"""The engine loop: the only place where commands meet the scheduler and plans meet the runner.

Never catches a runner's exception: an engine that failed once is not trusted again, the process reports it and ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from ..clock import Clock
from ..link.messages import Abort, Add, Command, Shutdown, Tokens
from ..types import Request, StepPlan, StepReport, StepResult, TokenEvent

IDLE_WAIT_S = 1.0  # longest wait for a command; short enough that a signal handler runs soon

Pending = Callable[[], StepResult]  # a step in flight; the call, which is made once, waits for its result


class Scheduler(Protocol):
    """Decides what is computed. server/scheduler has one for sequences, one for texts and one for both."""

    @property
    def has_work(self) -> bool:
        """True while a request is open."""
        ...

    @property
    def open_ids(self) -> tuple[str, ...]:
        """Ids of all open requests."""
        ...

    def add(self, request: Request) -> None:
        """Queue `request`."""
        ...

    def abort(self, request_id: str, now: float) -> TokenEvent | None:
        """End a request; return None when it is unknown or has ended."""
        ...

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""
        ...

    def schedule(self, now: float) -> StepPlan:
        """Return the next step. Earlier ones may be in flight. An empty plan must be applied too."""
        ...

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenEvent]:
        """Record what the oldest step in flight computed, and return its events."""
        ...

    def report(self, plan: StepPlan, result: StepResult, now: float) -> StepReport:
        """Report of the state after `apply`."""
        ...


class Runner(Protocol):
    """Computes plans in the order of their submission. Keeps nothing of a request but what is in its KV blocks."""

    def submit(self, plan: StepPlan) -> Pending:
        """Begin a step: write the KV of every planned token and sample for each sequence with `needs_sample`, or pool
        texts to rows. Whatever it needs of the plan's views it reads before it returns.
        """
        ...


class Inbox(Protocol):
    """Source of commands."""

    def drain(self, timeout_s: float) -> list[Command]:
        """Return all commands that have come, oldest first; wait up to `timeout_s` seconds for the first."""
        ...


class Outbox(Protocol):
    """Destination of events."""

    def put(self, tokens: Tokens) -> None:
        """Send; must not block on a slow reader."""
        ...


class EngineLoop:
    """Turns of: drain the inbox, schedule and submit, apply the oldest step, fill the outbox."""

    def __init__(
        self, scheduler: Scheduler, runner: Runner, clock: Clock, inbox: Inbox, outbox: Outbox, depth: int = 1
    ) -> None:
        """`depth` is the number of steps in flight that the runner gains from, such as its pipeline stages."""
        self._scheduler, self._runner, self._clock = scheduler, runner, clock
        self._inbox, self._outbox, self._depth = inbox, outbox, depth
        self._in_flight: deque[tuple[StepPlan, Pending]] = deque()  # oldest first
        self._is_stopped = False

    def run(self) -> None:
        """Turn until Shutdown."""
        while self.step():
            pass

    def step(self) -> bool:
        """Make one turn; return False after Shutdown. Waits for commands only when there is nothing to do."""
        timeout_s = 0.0 if self._has_work else IDLE_WAIT_S
        events = self._carry_out(self._inbox.drain(timeout_s))
        if events or self._has_work:
            self._turn(events)
        return not self._is_stopped

    @property
    def _has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._in_flight)

    def _turn(self, events: list[TokenEvent]) -> None:
        """Submit steps until `depth` are in flight or nothing is left to compute; then apply the oldest."""
        while len(self._in_flight) < self._depth:
            plan = self._scheduler.schedule(self._clock.now())
            self._in_flight.append((plan, _empty(plan) if plan.is_empty else self._runner.submit(plan)))
            if plan.is_empty:
                break
        plan, pending = self._in_flight.popleft()
        result = pending()
        now = self._clock.now()
        events += self._scheduler.apply(plan, result, now)
        self._outbox.put(Tokens(events, self._scheduler.report(plan, result, now)))

    def _carry_out(self, commands: list[Command]) -> list[TokenEvent]:
        """Carry out commands in the order they came; return the events of requests that they ended."""
        events: list[TokenEvent] = []
        for command in commands:
            match command:
                case Add(request):
                    self._scheduler.add(request)
                case Abort(request_id):
                    events += self._abort(request_id)
                case Shutdown():
                    self._is_stopped = True
        if self._is_stopped:
            for request_id in self._scheduler.open_ids:
                events += self._abort(request_id)
        return events

    def _abort(self, request_id: str) -> list[TokenEvent]:
        event = self._scheduler.abort(request_id, self._clock.now())
        return [] if event is None else [event]


def _empty(plan: StepPlan) -> Pending:
    return lambda: StepResult(plan.step_id, {}, 0.0)
