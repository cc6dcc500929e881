"""The forecast of a request's wait: what follows from its formula, and how it keeps an overloaded engine to a limit."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from math import ceil

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scheduler_harness import Bench, bench, request

from server.scheduler.forecast import IN_TIME, NUM_ERRORS_KEPT, EngineLoad, Forecast, StepTimes
from server.scheduler.turns import Waiting
from server.types import Request, StepReport, StepResult

STEP_S, TOKEN_S = 0.01, 0.0005  # of the engines here
BUDGET = 16


def report(step_id: int, num_prefill: int, num_decode: int, begin: float = 0.0, **fields: int) -> StepReport:
    seconds = STEP_S + TOKEN_S * (num_prefill + num_decode)
    state = {"num_running": num_decode, "num_waiting": 0, "prefix_queries": 0, "prefix_hits": 0, **fields}
    return StepReport(
        step_id, begin, begin + seconds, num_prefill_tokens=num_prefill, num_decode_tokens=num_decode,
        admitted=(), preempted=(), num_free_blocks=9, num_blocks=10, step_seconds=seconds, **state,
    )  # fmt: skip


def taught(num_ended: int = 4, num_generated: int = 40) -> Forecast:
    """A forecast that has seen steps of both kinds, of sequences of about ten tokens."""
    forecast = Forecast(BUDGET)
    for number in range(8):
        forecast.record(report(20 * number, 8 + number, 2), 0, 0)
        forecast.record(report(20 * number + 10, 0, 1 + number % 4), num_generated, num_ended)
    return forecast


loads = st.builds(EngineLoad, st.integers(0, 12), st.integers(0, 4), st.integers(0, 50), st.integers(0, 5000))


def test_before_the_first_step_nothing_is_refused() -> None:
    assert Forecast(BUDGET).first_token_s(EngineLoad(4, 0, 100, 10_000), 500) == 0


@given(loads, st.integers(1, 500))
def test_who_finds_more_ahead_or_brings_more_waits_no_less(load: EngineLoad, num_prompt: int) -> None:
    forecast = taught()
    delay_s, first_s = forecast.delay_s(load), forecast.first_token_s(load, num_prompt)
    assert 0 <= delay_s <= first_s
    more = EngineLoad(load.num_running, load.num_free_places, load.num_ahead + 1, load.num_tokens_ahead + 20)
    assert forecast.delay_s(more) >= delay_s
    assert forecast.first_token_s(more, num_prompt) >= first_s
    assert forecast.first_token_s(load, num_prompt + 1) >= first_s


@given(st.integers(0, 12), st.integers(1, 4), st.integers(1, 500))
def test_with_a_free_place_and_nobody_ahead_there_is_no_delay(num_running: int, free: int, num_prompt: int) -> None:
    load = EngineLoad(num_running, free)
    assert taught().delay_s(load) == 0
    assert taught().first_token_s(load, num_prompt) > 0


@given(st.lists(st.tuples(st.integers(1, 512), st.booleans()), min_size=2, max_size=200))
def test_the_time_of_steps_is_found_whatever_came(steps: list[tuple[int, bool]]) -> None:
    assume(max(n for n, _ in steps[-16:]) >= 2 * min(n for n, _ in steps[-16:]))
    times = StepTimes()
    for num_tokens, has_prompts in steps:
        times.add(num_tokens, STEP_S + TOKEN_S * num_tokens, has_prompts)
    assert times.line == pytest.approx((STEP_S, TOKEN_S), rel=1e-3)


@example([(1, 0.0, False), (70, 3.5890061525862187, True)])
@given(st.lists(st.tuples(st.integers(1, 512), st.floats(0, 10), st.booleans()), min_size=1, max_size=50))
def test_no_step_makes_time_negative(steps: list[tuple[int, float, bool]]) -> None:
    times = StepTimes()
    for step in steps:
        times.add(*step)
    assert min(times.line) >= 0


def test_a_long_time_of_decoding_does_not_forget_what_prompts_cost() -> None:
    times = StepTimes()
    for _ in range(4):
        times.add(500, STEP_S + 500 * TOKEN_S, True)
    for _ in range(10_000):
        times.add(4, STEP_S + 4 * TOKEN_S, False)
    assert times.line == pytest.approx((STEP_S, TOKEN_S), rel=1e-3)


def test_tokens_that_the_prefix_cache_has_are_not_waited_for() -> None:
    load = EngineLoad(0, 1, 0, 640)
    cold, warm = taught(), taught()
    warm.record(report(100, 8, 1, prefix_queries=1000, prefix_hits=750), 1, 0)
    assert warm.delay_s(load) == pytest.approx(cold.delay_s(load) / 4, rel=0.05)


def test_a_pause_of_the_engine_is_no_step() -> None:
    """Not the time in which it had nothing to do, nor that in which it was dead."""
    forecast = taught()
    before = forecast.first_token_s(EngineLoad(0, 1), 16)
    forecast.record(report(200, 0, 4, begin=50.0, num_running=0), 4, 4)
    forecast.record(report(201, 4, 0, begin=900.0, num_running=1), 0, 0)
    forecast.record(report(1, 4, 0, begin=2000.0), 0, 0)
    assert forecast.first_token_s(EngineLoad(0, 1), 16) == pytest.approx(before)


def test_between_two_steps_the_engine_is_at_work() -> None:
    """Sending events and taking commands is part of what a step takes."""
    forecast = Forecast(BUDGET)
    forecast.record(report(1, 0, 4, begin=0.0), 4, 0)
    forecast.record(report(2, 0, 4, begin=0.5), 4, 0)
    assert forecast.first_token_s(EngineLoad(0, 1), 1) > 0.2


@dataclass
class Doored:
    """An engine in virtual time whose steps take what their tokens say, and a door before it."""

    limit_s: float | None
    engine: Bench = field(default_factory=lambda: bench(400, max_num_seqs=4, max_num_batched_tokens=BUDGET))
    forecast: Forecast = field(default_factory=lambda: Forecast(BUDGET))
    now: float = 0.0
    came: dict[str, float] = field(default_factory=dict)
    first_s: dict[str, float] = field(default_factory=dict)
    num_tokens: int = 0
    num_in_time: int = 0  # of them, of those whose first came within the limit
    refused_s: list[float] = field(default_factory=list)  # by how much each was past the limit

    def load(self, newcomer: Request) -> EngineLoad:
        scheduler, mean = self.engine.scheduler, self.forecast.tokens_per_sequence
        placed = [self.engine.requests[name] for name in scheduler.running_ids]
        waiting = [
            Waiting(self.engine.requests[name], len(self.engine.requests[name].prompt_token_ids))
            for name in scheduler.open_ids
            if name not in scheduler.running_ids
        ]
        to_come = Counter[str]()
        for each in placed:
            to_come[each.tenant] += max(1, ceil(mean) - len(self.engine.events[each.request_id]))
        ahead = self.forecast.turns.before(newcomer, waiting, to_come, mean)
        computing = [each for each in placed if each.request_id not in self.first_s]
        tokens = sum(len(each.prompt_token_ids) for each in computing) + sum(each.num_tokens for each in ahead)
        return EngineLoad(scheduler.num_running, 4 - scheduler.num_running, len(ahead), tokens)

    def offer(self, name: str, num_prompt: int, num_generated: int, priority: int = 0, tenant: str = "") -> bool:
        prompt = [len(self.came) % 11] * num_prompt
        newcomer = request(name, prompt, num_generated, arrival_time=self.now, priority=priority, tenant=tenant)
        load = self.load(newcomer)
        expected_s = self.forecast.first_token_s(load, num_prompt)
        limit_s = None if self.limit_s is None else self.limit_s - self.forecast.margin_s
        if limit_s is not None and self.forecast.delay_s(load) > 0 and expected_s > limit_s:
            self.refused_s.append(expected_s - limit_s)
            return False
        self.forecast.expect(name, self.now, expected_s)
        self.came[name] = self.now
        self.engine.requests[name] = newcomer
        self.engine.scheduler.add(newcomer)
        return True

    def step(self) -> None:
        scheduler = self.engine.scheduler
        begin = self.now
        plan = scheduler.schedule(begin)
        result = StepResult(plan.step_id, {}, 0.0) if plan.is_empty else self.engine.runner.execute(plan)
        self.now += STEP_S + TOKEN_S * plan.num_tokens
        events = scheduler.apply(plan, result, self.now)
        self.num_tokens += len(events)
        for event in events:
            self.engine.events[event.request_id].append(event)
            first_s = self.first_s.setdefault(event.request_id, self.now - self.came[event.request_id])
            self.num_in_time += self.limit_s is not None and first_s <= self.limit_s
        ended = sum(event.finish_reason is not None for event in events)
        firsts = [event.request_id for event in events if event.index == 0]
        self.forecast.record(scheduler.report(plan, result, self.now), len(events), ended, firsts)

    def run(self, arrivals: deque[tuple[float, int, int]], until_s: float) -> None:
        """Offer (time, prompt, tokens) as their times come."""
        while self.now < until_s:
            while arrivals and arrivals[0][0] <= self.now:
                _, num_prompt, num_generated = arrivals.popleft()
                self.offer(f"r{len(arrivals)}", num_prompt, num_generated)
            if self.engine.scheduler.has_work:
                self.step()
            else:
                self.now = max(self.now + 1e-3, arrivals[0][0] if arrivals else until_s)


def arrivals(per_s: float, until_s: float) -> deque[tuple[float, int, int]]:
    """Prompts of 4 to 24 tokens, outputs of 5 to 25, at even distances."""
    count = int(per_s * until_s)
    return deque((i / per_s, 4 + i * 7 % 21, 5 + i * 11 % 21) for i in range(count))


LIMIT_S, TIME_S = 0.5, 30.0
CAPACITY = 15.0  # requests a second: four places, about 15 steps of 14 to 18 ms each


def test_at_three_times_the_capacity_the_admitted_keep_to_the_limit_and_no_token_is_lost() -> None:
    alone, full = Doored(None), Doored(LIMIT_S)
    alone.run(arrivals(3 * CAPACITY, TIME_S), TIME_S)  # without a door: all the engine can do
    full.run(arrivals(3 * CAPACITY, TIME_S), TIME_S)
    times = sorted(full.first_s.values())
    assert max(alone.first_s.values()) > 10 * LIMIT_S, "this is no overload"
    assert times[len(times) * 99 // 100] <= 1.5 * LIMIT_S
    assert full.num_in_time >= 0.95 * alone.num_tokens
    assert full.refused_s


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=300))
def test_the_margin_would_have_kept_nearly_all_of_the_latest_in_time(errors: list[float]) -> None:
    forecast = taught()
    for number, error_s in enumerate(errors):
        name, came = f"r{number}", 1000.0 * number
        forecast.expect(name, came, 5.0)
        forecast.record(report(1000 + number, 4, 0, begin=came + 5.0 + error_s - STEP_S - 4 * TOKEN_S), 1, 0, [name])
    latest = errors[-NUM_ERRORS_KEPT:]
    late = [error_s for error_s in latest if error_s > forecast.margin_s + 1e-9]
    assert len(late) <= (1 - IN_TIME) * len(latest)
    assert 0 <= forecast.margin_s <= max(0.0, *latest) + 1e-9


def test_an_engine_that_has_died_meanwhile_says_nothing_of_a_forecast() -> None:
    forecast = taught()
    forecast.expect("a", 0.0, 0.1)
    forecast.record(report(1, 4, 0, begin=2000.0), 1, 0, ["a"])
    assert forecast.margin_s == 0


def test_below_the_capacity_nobody_is_refused() -> None:
    engine = Doored(LIMIT_S)
    engine.run(arrivals(0.6 * CAPACITY, TIME_S), TIME_S)
    assert engine.refused_s == []


def test_who_comes_back_after_what_was_past_the_limit_is_taken() -> None:
    engine = Doored(LIMIT_S)
    engine.run(arrivals(3 * CAPACITY, 20.0), 20.0)
    while engine.offer(f"last{len(engine.came)}", 10, 10):
        pass
    back = engine.now + 2 * engine.refused_s[-1] + 0.1  # lengths are drawn: twice what is expected
    while engine.now < back:
        engine.step()
    assert engine.offer("again", 10, 10)


def test_the_urgent_are_refused_last() -> None:
    engine = Doored(LIMIT_S)
    engine.run(arrivals(3 * CAPACITY, 20.0), 20.0)
    while engine.offer(f"last{len(engine.came)}", 10, 10):
        pass
    assert not engine.offer("later", 10, 10, priority=5)
    assert engine.offer("urgent", 10, 10, priority=-5)


def test_who_asks_little_is_not_refused_for_anothers_queue() -> None:
    """One floods the engine at three times its capacity; the other has one request at a time."""
    engine = Doored(LIMIT_S)
    flood, num_taken, num_refused = arrivals(3 * CAPACITY, TIME_S), 0, 0
    while flood:
        name = f"few{num_taken}"
        if not num_taken or f"few{num_taken - 1}" not in engine.engine.scheduler.open_ids:
            is_taken = engine.offer(name, 8, 10, tenant="few")
            num_taken, num_refused = num_taken + is_taken, num_refused + (not is_taken)
        until_s = engine.now + 0.1
        while engine.now < until_s:
            while flood and flood[0][0] <= engine.now:
                _, num_prompt, num_generated = flood.popleft()
                engine.offer(f"r{len(flood)}", num_prompt, num_generated, tenant="many")
            engine.step()
    times = sorted(engine.first_s.values())
    assert times[len(times) * 99 // 100] <= 1.5 * LIMIT_S
    assert len(engine.refused_s) > num_refused  # those of the flood
    assert num_refused < num_taken / 10
