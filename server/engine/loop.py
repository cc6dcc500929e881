"""The engine loop: the only place where commands meet the scheduler and plans meet the runner.

Never catches a runner's exception: an engine that failed once is not trusted again, the process reports it and ends.
"""

from __future__ import annotations

from typing import Protocol

from neuronserve.server.clock import Clock
from neuronserve.server.engine.grammar_queue import GrammarQueue
from neuronserve.server.link.messages import Abort, Add, Command, ResetPrefixCache, Shutdown, Tokens
from neuronserve.server.types import Request, StepPlan, StepReport, StepResult, TokenEvent

IDLE_WAIT_S = 1.0  # longest wait for a command; short enough that a signal handler is heard


class Scheduler(Protocol):
    """Decides what is computed: neuronserve.server.scheduler's of sequences, of texts, or of both."""

    @property
    def has_work(self) -> bool:
        """True while a request is open."""
        ...

    @property
    def open_ids(self) -> tuple[str, ...]:
        """Ids of all open requests."""
        ...

    def add(self, request: Request) -> None:
        """Let `request` wait for its turn."""
        ...

    def abort(self, request_id: str, now: float) -> TokenEvent | None:
        """End a request; None when it is unknown or has ended."""
        ...

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""
        ...

    def schedule(self, now: float) -> StepPlan:
        """The next step. An empty plan must be applied too."""
        ...

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenEvent]:
        """Record what the step computed; the events that come of it."""
        ...

    def report(self, plan: StepPlan, result: StepResult, now: float) -> StepReport:
        """The state after `apply`."""
        ...


class Runner(Protocol):
    """Computes plans. May keep nothing about a request but what it wrote to the plan's KV blocks."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Write the KV of every planned token; sample for each sequence with `needs_sample`. Or pool texts to rows."""
        ...


class Inbox(Protocol):
    """Where commands come from."""

    def drain(self, timeout_s: float) -> list[Command]:
        """All commands that have come, oldest first; waits up to `timeout_s` seconds for the first."""
        ...


class Outbox(Protocol):
    """Where events go."""

    def put(self, tokens: Tokens) -> None:
        """Send; must not block on a slow reader."""
        ...


class EngineLoop:
    """Turns of: drain the inbox, schedule, execute, apply, tell the outbox."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Clock,
        inbox: Inbox,
        outbox: Outbox,
        gate: GrammarQueue | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._inbox = inbox
        self._outbox = outbox
        self._gate = gate or GrammarQueue(None)
        self._is_stopped = False

    def run(self) -> None:
        """Turn until Shutdown."""
        while self.step():
            pass

    def step(self) -> bool:
        """One turn; False after Shutdown. Waits for commands only when there is nothing to do."""
        timeout_s = 0.0 if self._scheduler.has_work else self._gate.wait_s(IDLE_WAIT_S)
        events = self._carry_out(self._inbox.drain(timeout_s))
        for request in self._gate.release():
            self._scheduler.add(request)
        if events or self._scheduler.has_work:
            self._turn(events)
        return not self._is_stopped

    def _turn(self, events: list[TokenEvent]) -> None:
        plan = self._scheduler.schedule(self._clock.now())
        result = StepResult(plan.step_id, {}, 0.0) if plan.is_empty else self._runner.execute(plan)
        now = self._clock.now()
        events += self._scheduler.apply(plan, result, now)
        self._outbox.put(Tokens(events, self._scheduler.report(plan, result, now)))

    def _carry_out(self, commands: list[Command]) -> list[TokenEvent]:
        """Carry out commands in the order they came; returns the events of those that ended a request."""
        events: list[TokenEvent] = []
        for command in commands:
            match command:
                case Add(request):
                    if self._gate.take(request):
                        self._scheduler.add(request)
                case Abort(request_id):
                    events += self._abort(request_id)
                case ResetPrefixCache():
                    self._scheduler.reset_prefix_cache()
                case Shutdown():
                    self._is_stopped = True
        if self._is_stopped:
            for request_id in (*self._scheduler.open_ids, *self._gate.held_ids):
                events += self._abort(request_id)
        return events

    def _abort(self, request_id: str) -> list[TokenEvent]:
        now = self._clock.now()
        if self._gate.drop(request_id):
            return [TokenEvent(request_id, token_id=None, index=0, time=now, finish_reason="abort")]
        event = self._scheduler.abort(request_id, now)
        return [] if event is None else [event]
