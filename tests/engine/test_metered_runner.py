"""Modelled time in the engine loop, under a clock that is moved by hand: charges, pacing, and that nothing is lost."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from neuronserve.server.clock import NS, ManualClock
from neuronserve.server.config import CacheConfig, PoolingLimits, SchedulerConfig
from neuronserve.server.cost.meter import Meter
from neuronserve.server.engine.loop import EngineLoop, Pending
from neuronserve.server.engine.metered_runner import MAX_HOST_NS, MeteredOutbox, MeteredRunner
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.link.messages import Abort, Add, Command, Tokens
from neuronserve.server.scheduler.pooling import PoolingScheduler
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.scheduler.shared import SharedScheduler
from neuronserve.server.types import (
    DeviceStep,
    PoolingParams,
    Request,
    SampledToken,
    SamplingParams,
    StepPlan,
    StepResult,
)
from tests.cost.pricing import small_pricer
from tests.depth import representative

CACHE = CacheConfig(num_blocks=40, block_size=16)
LIMITS = SchedulerConfig(max_model_len=512, max_num_seqs=4, max_num_batched_tokens=128)
TEXTS = PoolingLimits(max_num_texts=2, max_num_tokens=128, max_length=128)
PRICER = small_pricer(LIMITS.max_num_seqs, LIMITS.max_model_len)
VOCAB = 50


@dataclass
class Script:
    """Commands by the second at which they come; waiting for one moves the clock."""

    clock: ManualClock
    commands: list[tuple[float, Command]] = field(default_factory=list)

    def drain(self, timeout_s: float) -> list[Command]:
        if self.commands:
            self.clock.wait_until(min(self.commands[0][0], self.clock.now() + timeout_s))
        due = [command for time, command in self.commands if time <= self.clock.now()]
        del self.commands[: len(due)]
        return due


@dataclass
class Sent:
    """An outbox that keeps what was sent; sending takes the host `turn_s`."""

    clock: ManualClock
    turn_s: float
    tokens: list[Tokens] = field(default_factory=list)

    def put(self, tokens: Tokens) -> None:
        self.tokens.append(tokens)
        self.clock.advance(self.turn_s)

    @property
    def steps(self) -> list[DeviceStep]:
        return [one.report.device for one in self.tokens if one.report.device is not None]

    def device_ns(self) -> dict[str, int]:
        """Last reported device time of each request."""
        return {event.request_id: charge.device_ns for one in self.tokens for event, charge in one.charged()}


class SlowHost:
    """A host that takes `step_s` for each step, and samples the same token for everybody."""

    def __init__(self, clock: ManualClock, step_s: float) -> None:
        self._clock, self.step_s = clock, step_s

    def submit(self, plan: StepPlan) -> Pending:
        self._clock.advance(self.step_s)
        rows = {seq.request_id: b"1234" for seq in plan.seqs if seq.pooling is not None}
        sampled = {seq.request_id: SampledToken(1) for seq in plan.seqs if seq.needs_sample}
        return lambda: StepResult(plan.step_id, sampled, 0.0, rows=rows)


class Engine:
    def __init__(self, *, is_paced: bool, step_s: float = 0.0, turn_s: float = 0.0) -> None:
        self.clock = ManualClock(1000.0)
        self.inbox, self.outbox = Script(self.clock), Sent(self.clock, turn_s)
        self.host = SlowHost(self.clock, step_s)
        self.meter = Meter()
        runner = MeteredRunner(self.host, PRICER, self.meter, self.clock, is_paced)
        scheduler = SharedScheduler(Scheduler(LIMITS, KVCacheManager(CACHE)), PoolingScheduler(TEXTS))
        outbox = MeteredOutbox(self.outbox, self.meter)
        self.loop = EngineLoop(scheduler, runner, self.clock, self.inbox, outbox)

    def run(self, *commands: tuple[float, Command], until: float) -> None:
        self.inbox.commands = [(1000.0 + time, command) for time, command in commands]
        while self.clock.now() < 1000.0 + until:
            self.loop.step()
            if not self.inbox.commands and not self.loop._scheduler.has_work:
                self.clock.wait_until(1000.0 + until)

    def token_times(self, name: str) -> list[float]:
        events = [event for one in self.outbox.tokens for event in one.events if event.request_id == name]
        return [event.time - 1000.0 for event in events if event.token_id is not None]


def request(name: str, num_input: int = 100, max_tokens: int = 10, salt: int = 0) -> Add:
    prompt = tuple((salt * 7 + i) % VOCAB for i in range(num_input))
    return Add(Request(name, prompt, SamplingParams(max_tokens), 0.0, cache_salt=name))


def text(name: str, num_tokens: int = 60) -> Add:
    return Add(Request(name, tuple(range(num_tokens)), SamplingParams(0), 0.0, pooling=PoolingParams(group="a")))


PREFILL_S = PRICER.prefill_ns(0, 100) / NS
DECODE_S = PRICER.decode_ns(100, 1) / NS


def test_a_request_alone_is_charged_its_prefill_and_every_decode() -> None:
    engine = Engine(is_paced=False)
    engine.run((0.0, request("a", max_tokens=4)), until=1.0)
    assert engine.outbox.device_ns() == {"a": PRICER.prefill_ns(0, 100) + 3 * PRICER.decode_ns(100, 1)}
    assert [step.late_ns for step in engine.outbox.steps] == [None] * 4


def test_a_report_says_what_its_step_took_on_the_part() -> None:
    engine = Engine(is_paced=False)
    engine.run((0.0, request("a", max_tokens=2)), until=1.0)
    first, second = (one.report for one in engine.outbox.tokens)
    assert [each.device.busy_ns / NS for each in (first, second)] == pytest.approx([PREFILL_S, DECODE_S])
    assert first.device is not None
    assert first.device.num_prefill_padding == 28
    assert second.device is not None
    assert second.device.num_decode_padding == 3
    assert second.device.hbm_bytes > 0 < second.device.flops


def test_those_that_decode_together_share_the_step() -> None:
    engine = Engine(is_paced=False)
    engine.run((0.0, request("a", max_tokens=3)), (0.0, request("b", num_input=20, max_tokens=3, salt=1)), until=1.0)
    used = engine.outbox.device_ns()
    own = {"a": PRICER.prefill_ns(0, 100), "b": PRICER.prefill_ns(0, 20)}
    assert sum(used.values()) == sum(own.values()) + 2 * PRICER.decode_ns(100, 1)
    assert abs((used["a"] - own["a"]) - (used["b"] - own["b"])) <= 2


def test_paced_tokens_come_when_the_part_would_give_them_whatever_the_host_takes_between() -> None:
    engine = Engine(is_paced=True, step_s=DECODE_S / 3, turn_s=DECODE_S / 2)
    engine.run((0.0, request("a", max_tokens=50)), until=1.0)
    expected = [PREFILL_S + i * DECODE_S for i in range(50)]
    assert engine.token_times("a") == pytest.approx(expected, abs=1e-9)
    assert {(step.late_ns, step.lag_ns) for step in engine.outbox.steps} == {(0, 0)}


def test_steps_of_texts_follow_one_another_on_the_part_without_a_pause() -> None:
    """Nobody runs between them, and yet what the host takes is lost time, not idle time."""
    engine = Engine(is_paced=True, turn_s=0.02)
    engine.run(*((0.0, text(str(i))) for i in range(6)), until=1.0)
    steps = engine.outbox.steps
    assert [step.prefill_ns for step in steps] == [2 * PRICER.prefill_ns(0, 60)] * 3
    assert [step.idle_ns for step in steps[1:]] == [0, 0]
    assert all(step.lag_ns > 0 for step in steps[1:])


def test_texts_beside_generation_are_charged_what_their_steps_take() -> None:
    engine = Engine(is_paced=False)
    engine.run((0.0, request("a", max_tokens=8)), *((0.0, text(str(i))) for i in range(5)), until=1.0)
    charged = engine.outbox.device_ns()
    assert {charged[str(i)] for i in range(5)} == {PRICER.prefill_ns(0, 60)}
    assert sum(charged.values()) == sum(step.busy_ns for step in engine.outbox.steps)
    assert engine.meter.num_accounts == 0


@pytest.mark.parametrize(("host_s", "counted_s"), [(0.0, 0.0), (0.002, 0.002), (3.0, MAX_HOST_NS / NS)])
def test_the_hosts_work_before_the_first_step_is_part_of_a_paced_prefill(host_s: float, counted_s: float) -> None:
    engine = Engine(is_paced=True)
    asked = replace(request("a", max_tokens=3).request, received_time=1001.0 - host_s)
    engine.run((1.0, Add(asked)), until=2.0)
    expected = [1.0 - counted_s + PREFILL_S + i * DECODE_S for i in range(3)]
    assert engine.token_times("a") == pytest.approx(expected, abs=1e-9)
    assert sum(step.idle_ns for step in engine.outbox.steps) == pytest.approx((1.0 - counted_s) * NS, abs=2)


def test_a_request_that_came_during_the_last_step_is_computed_right_after_it() -> None:
    engine = Engine(is_paced=True, turn_s=0.001)
    engine.run((0.0, request("a", max_tokens=1)), until=PREFILL_S / 2)
    late = replace(request("b", max_tokens=1, salt=1).request, received_time=1000.0 + PREFILL_S / 2)
    engine.run((0.0, Add(late)), until=1.0)
    assert engine.token_times("b") == pytest.approx([2 * PREFILL_S], abs=1e-9)


def test_a_host_that_is_too_slow_is_told_step_by_step() -> None:
    engine = Engine(is_paced=True, step_s=DECODE_S + 0.004)
    engine.run((0.0, request("a", max_tokens=5)), until=1.0)
    late = [step.late_ns or 0 for step in engine.outbox.steps]
    assert late[1] == pytest.approx(0.004 * NS, abs=2)
    assert min(late[1:]) > 0
    assert sum(step.lag_ns for step in engine.outbox.steps) > 0


def test_after_one_slow_step_the_others_are_not_hurried() -> None:
    engine = Engine(is_paced=True)
    engine.run((0.0, request("a", max_tokens=3)), until=PREFILL_S + DECODE_S)
    engine.host.step_s = 0.5
    engine.loop.step()
    engine.host.step_s = 0.0
    engine.run((1.0, request("b", max_tokens=20)), until=2.0)
    gaps = [b - a for a, b in zip(engine.token_times("b"), engine.token_times("b")[1:], strict=False)]
    assert gaps == pytest.approx([DECODE_S] * 19, abs=1e-9)


def test_unpaced_steps_take_the_hosts_time_and_are_charged_the_parts() -> None:
    engine = Engine(is_paced=False, step_s=0.25)
    engine.run((0.0, request("a", max_tokens=4)), until=2.0)
    assert engine.token_times("a") == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert sum(step.idle_ns for step in engine.outbox.steps) == 0


@pytest.mark.parametrize("is_paced", representative([True, False]))
def test_ten_minutes_of_mixed_work_are_attributed_or_idle_to_the_nanosecond(is_paced: bool) -> None:
    chance = random.Random(5)
    commands: list[tuple[float, Command]] = []
    time_s = 0.0
    for i in range(2500):
        time_s += chance.expovariate(2500 / 600)
        add = request(f"r{i}", chance.randrange(1, 400), chance.randrange(1, 70), salt=i % 50)
        commands.append((time_s, add))
        if i % 17 == 0:
            commands.append((time_s + 0.003, Abort(f"r{i}")))
    commands.sort(key=lambda command: command[0])
    host_s = 0.00002 if is_paced else 0.0001  # a paced host is faster than the accelerator's shortest step
    engine = Engine(is_paced=is_paced, step_s=host_s, turn_s=host_s)
    engine.run(*commands, until=600.0)
    used, steps = engine.outbox.device_ns(), engine.outbox.steps
    attributed, busy = sum(used.values()), sum(step.busy_ns for step in steps)
    idle, lag = sum(step.idle_ns for step in steps), sum(step.lag_ns for step in steps)
    assert len(used) == 2500
    assert sum(len(one.report.preempted) for one in engine.outbox.tokens) > 0
    assert attributed == busy
    assert engine.meter.num_accounts == 0
    assert busy > 50 * NS < idle
    if is_paced:
        last = [one.report for one in engine.outbox.tokens if one.report.device is not None][-1]
        assert attributed + idle + lag == round(last.time * NS) - 1000 * NS
        assert lag == 0
