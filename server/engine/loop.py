"""The engine loop: the only place where commands meet the scheduler and plans meet the runner.

Never catches a runner's exception: an engine that failed once is not trusted again, the process reports it and ends.
"""

from __future__ import annotations

from typing import Protocol

from server.engine.messages import Command, Tokens
from server.types import StepPlan, StepResult


class Runner(Protocol):
    """Computes plans. May keep nothing about a request but what it wrote to the plan's KV blocks."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Write the KV of every planned token; sample for each sequence with `needs_sample`."""
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
