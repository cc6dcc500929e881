"""Inbox and outbox of an engine loop in a test: all requests at once, events and tokens by request."""

from __future__ import annotations

from collections.abc import Sequence

from neuronserve.server.clock import ManualClock
from neuronserve.server.engine.loop import EngineLoop, Runner
from neuronserve.server.link.messages import Add, Command, Tokens
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, TokenEvent


class Mailbox:
    def __init__(self, requests: Sequence[Request]) -> None:
        self.commands: list[Command] = [Add(request) for request in requests]
        self.events: list[TokenEvent] = []
        self.num_preempted = self.num_turns = 0

    def drain(self, timeout_s: float) -> list[Command]:
        del timeout_s
        commands, self.commands = self.commands, []
        return commands

    def put(self, tokens: Tokens) -> None:
        self.num_turns += 1
        self.num_preempted += len(tokens.report.preempted)
        self.events += tokens.events

    @property
    def tokens(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for event in self.events:
            if event.token_id is not None:
                found.setdefault(event.request_id, []).append(event.token_id)
        return found

    @property
    def errors(self) -> dict[str, str]:
        return {event.request_id: event.error or "" for event in self.events if event.finish_reason == "error"}


def run_all(scheduler: Scheduler, runner: Runner, requests: Sequence[Request]) -> Mailbox:
    """Run the loop until every request has ended."""
    mailbox = Mailbox(requests)
    loop = EngineLoop(scheduler, runner, ManualClock(), mailbox, mailbox)
    loop.step()
    while scheduler.has_work:
        loop.step()
    return mailbox
