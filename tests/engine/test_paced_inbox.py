"""A paced server's requests pass the modelled stack's host before they are in the queue; a clock moved by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from neuronserve.server.clock import NS, ManualClock
from neuronserve.server.config import CacheConfig, SchedulerConfig
from neuronserve.server.cost.meter import Meter
from neuronserve.server.cost.model import CostModel
from neuronserve.server.cost.pricer import HostOfSteps, StepPricer
from neuronserve.server.cost.stacks import HostWork
from neuronserve.server.device.buckets import powers_of_two
from neuronserve.server.device.catalog import instance
from neuronserve.server.engine.fake_runner import FakeRunner
from neuronserve.server.engine.inbox import Inbox, arrival_hold
from neuronserve.server.engine.loop import EngineLoop
from neuronserve.server.engine.metered_runner import MeteredRunner
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.link.messages import Abort, Add, Input, ResetPrefixCache, Shutdown, Tokens
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, SamplingParams
from tests.cost.pricing import SMALL

REQUEST_S = 0.04
CACHE = CacheConfig(num_blocks=40, block_size=16)
PRICER = StepPricer(
    CostModel.of(SMALL, instance("inf2.xlarge"), 1),
    4,
    powers_of_two(512),
    (512,),
    HostOfSteps(HostWork(REQUEST_S, slot_s=0.001), stack="tgi"),
)
PREFILL_S, DECODE_S = PRICER.prefill_ns(0, 100) / NS, PRICER.decode_ns(101, 1) / NS


@dataclass
class Wire:
    """Inputs by the second at which they come; waiting for one moves the clock. Keeps what is answered."""

    clock: ManualClock
    commands: list[tuple[float, Input]] = field(default_factory=list)
    answers: list[Tokens] = field(default_factory=list)

    def drain(self, timeout_s: float) -> list[Input]:
        first = self.commands[0][0] if self.commands else float("inf")
        self.clock.wait_until(min(first, self.clock.now() + timeout_s))
        due = [command for time, command in self.commands if time <= self.clock.now()]
        del self.commands[: len(due)]
        return due

    def put(self, tokens: Tokens) -> None:
        self.answers.append(tokens)

    def times(self, name: str) -> list[float]:
        """Times of each token of a request, and of its end if that has no token."""
        return [event.time for one in self.answers for event in one.events if event.request_id == name]


def asked(name: str, received: float | None) -> Add:
    return Add(Request(name, (7,) * 100, SamplingParams(3), 0.0, cache_salt=name, received_time=received))


def served(*commands: tuple[float, Input]) -> Wire:
    """A paced engine from second 0 to 10."""
    clock = ManualClock()
    wire = Wire(clock, [*commands, (10.0, Shutdown())])
    runner = MeteredRunner(FakeRunner(CACHE, 50), PRICER, Meter(), clock, is_paced=True)
    scheduler = Scheduler(SchedulerConfig(512, 4, 128, batching="tgi"), KVCacheManager(CACHE))
    handlers = {ResetPrefixCache: lambda _: scheduler.reset_prefix_cache()}
    inbox = Inbox(wire, handlers, [arrival_hold(PRICER.request_s, clock)])
    EngineLoop(scheduler, runner, clock, inbox, wire).run()
    return wire


@pytest.mark.parametrize("on_the_way_s", [0.0, 0.004, 0.039])
def test_the_first_token_comes_after_the_stacks_host_and_the_prefill(on_the_way_s: float) -> None:
    """However long this server itself has worked on the request by then."""
    times = served((1.0 + on_the_way_s, asked("a", 1.0))).times("a")
    assert times[0] == pytest.approx(1.0 + REQUEST_S + PREFILL_S)
    assert times[1] - times[0] == pytest.approx(DECODE_S)


def test_a_request_that_comes_while_others_decode_waits_for_the_host_too() -> None:
    wire = served((1.0, asked("a", 1.0)), (1.0 + REQUEST_S, asked("b", 1.0 + REQUEST_S)))
    assert wire.times("b")[0] >= 1.0 + 2 * REQUEST_S + PREFILL_S - 1e-9


def test_what_no_client_sent_over_http_waits_for_nothing() -> None:
    assert served((1.0, asked("a", None))).times("a")[0] == pytest.approx(1.0 + PREFILL_S)


def test_a_request_aborted_on_the_host_ends_at_once() -> None:
    assert served((1.0, asked("a", 1.0)), (1.01, Abort("a"))).times("a") == [1.01]


def test_a_shutdown_ends_those_on_the_host() -> None:
    assert served((1.0, asked("a", 1.0)), (1.01, ResetPrefixCache()), (1.02, Shutdown())).times("a") == [1.02]
