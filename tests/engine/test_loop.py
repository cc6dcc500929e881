"""The engine loop, turn by turn, with the fake runner and a clock that is moved by hand."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from neuronserve.server.clock import ManualClock
from neuronserve.server.config import CacheConfig, SchedulerConfig
from neuronserve.server.engine.fake_runner import FakeRunner, expected_tokens
from neuronserve.server.engine.inbox import POLL_S, Inbox, grammar_hold
from neuronserve.server.engine.loop import IDLE_WAIT_S, EngineLoop, Pending, Runner
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.link.messages import Abort, Add, Input, ResetPrefixCache, Shutdown, StartTrace, Tokens
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, SamplingParams, StepPlan, StepResult, TokenEvent

CACHE = CacheConfig(num_blocks=20, block_size=4)
VOCAB = 50


class ListSource:
    """Messages put in by the test; remembers how long each drain was ready to wait."""

    def __init__(self) -> None:
        self.commands: list[Input] = []
        self.waits: list[float] = []

    def drain(self, timeout_s: float) -> list[Input]:
        self.waits.append(timeout_s)
        commands, self.commands = self.commands, []
        return commands


class ListOutbox:
    def __init__(self) -> None:
        self.sent: list[Tokens] = []

    def put(self, tokens: Tokens) -> None:
        self.sent.append(tokens)

    def events(self, request_id: str) -> list[TokenEvent]:
        return [event for tokens in self.sent for event in tokens.events if event.request_id == request_id]


class Grammars:
    """Ready when the test says so."""

    is_done = False

    def is_ready(self, text: str) -> bool:
        return self.is_done

    def forget(self) -> None:
        raise NotImplementedError


class Engine:
    def __init__(self, runner: Runner | None = None, grammars: Grammars | None = None, depth: int = 1) -> None:
        self.clock = ManualClock(100.0)
        self.inbox = ListSource()
        self.outbox = ListOutbox()
        self.scheduler = Scheduler(SchedulerConfig(64, 4, 16), KVCacheManager(CACHE))
        fake = FakeRunner(CACHE, VOCAB)
        handlers = {ResetPrefixCache: lambda _: self.scheduler.reset_prefix_cache()}
        inbox = Inbox(self.inbox, handlers, [] if grammars is None else [grammar_hold(grammars)])
        self.loop = EngineLoop(self.scheduler, runner or fake, self.clock, inbox, self.outbox, depth)

    def step(self, *commands: Input) -> bool:
        self.inbox.commands += commands
        return self.loop.step()


def request(request_id: str = "r", max_tokens: int = 3) -> Request:
    return Request(request_id, (1, 2, 3), SamplingParams(max_tokens), arrival_time=100.0)


def test_a_request_gets_its_tokens_one_a_turn_and_a_report_with_each() -> None:
    engine = Engine()
    engine.step(Add(request()))
    engine.step()
    engine.step()
    events = engine.outbox.events("r")
    assert [event.token_id for event in events] == expected_tokens([1, 2, 3], 3, VOCAB)
    assert [event.finish_reason for event in events] == [None, None, "length"]
    assert [tokens.report.step_id for tokens in engine.outbox.sent] == [1, 2, 3]
    assert [tokens.report.num_running for tokens in engine.outbox.sent] == [1, 1, 0]


def test_it_waits_for_commands_only_when_there_is_nothing_to_do() -> None:
    engine = Engine()
    engine.step()
    engine.step(Add(request(max_tokens=2)))
    engine.step()
    engine.step()
    assert engine.inbox.waits == [IDLE_WAIT_S, IDLE_WAIT_S, 0.0, IDLE_WAIT_S]
    assert len(engine.outbox.sent) == 2


def test_an_abort_is_answered_in_the_same_turn_and_an_unknown_one_is_ignored() -> None:
    engine = Engine()
    engine.step(Add(request()))
    engine.step(Abort("r"), Abort("unknown"))
    last = engine.outbox.events("r")[-1]
    assert (last.finish_reason, last.index) == ("abort", 1)
    assert engine.outbox.events("unknown") == []
    assert not engine.scheduler.has_work


def test_a_request_aborted_before_its_first_turn_computes_nothing() -> None:
    engine = Engine()
    engine.step(Add(request()), Abort("r"))
    assert [event.finish_reason for event in engine.outbox.events("r")] == ["abort"]
    assert engine.outbox.sent[0].report.num_prefill_tokens == 0


def test_the_prefix_cache_is_forgotten_on_command() -> None:
    engine = Engine()
    long = replace(request(max_tokens=1), prompt_token_ids=tuple(range(10)))
    hits = []
    for index, commands in enumerate([(), (), (ResetPrefixCache(),)]):
        one = replace(long, request_id=f"r{index}")
        engine.step(*commands, Add(one))
        hits.append(engine.outbox.events(one.request_id)[0].num_cached_tokens)
    assert hits == [0, 8, 0]


def test_shutdown_ends_every_open_request_and_then_the_loop() -> None:
    engine = Engine()
    engine.step(Add(request("a", 50)), Add(request("b", 50)))
    engine.inbox.commands = [Add(request("c")), Shutdown()]
    engine.loop.run()
    for name in "abc":
        assert engine.outbox.events(name)[-1].finish_reason == "abort"
    assert not engine.scheduler.has_work


def test_a_request_waits_for_its_grammar_while_others_are_served() -> None:
    grammars = Grammars()
    engine = Engine(grammars=grammars)
    ruled = replace(request("ruled"), sampling=SamplingParams(3, grammar="g"))
    engine.step(Add(ruled), Add(request("free", 2)))
    engine.step()
    assert len(engine.outbox.events("free")) == 2
    engine.step()
    assert engine.inbox.waits[-1] == POLL_S
    assert engine.outbox.events("ruled") == []
    grammars.is_done = True
    for _ in range(3):
        engine.step()
    assert [event.token_id for event in engine.outbox.events("ruled")] == expected_tokens([1, 2, 3], 3, VOCAB)
    assert engine.inbox.waits[-1] == 0.0


def test_a_waiting_request_can_be_aborted_and_ends_with_the_engine() -> None:
    engine = Engine(grammars=Grammars())
    ruled = [replace(request(name), sampling=SamplingParams(3, grammar="g")) for name in "ab"]
    engine.step(*map(Add, ruled))
    engine.step(Abort("a"))
    assert [event.finish_reason for event in engine.outbox.events("a")] == ["abort"]
    assert not engine.step(Shutdown())
    assert [event.finish_reason for event in engine.outbox.events("b")] == ["abort"]


def test_shutdown_of_an_idle_engine_says_nothing() -> None:
    engine = Engine()
    assert not engine.step(Shutdown())
    assert engine.outbox.sent == []


def test_a_runner_that_fails_ends_the_engine() -> None:
    class BrokenRunner:
        def submit(self, plan: StepPlan) -> Pending:
            raise MemoryError("the device is gone")

    engine = Engine(BrokenRunner())
    with pytest.raises(MemoryError, match="the device is gone"):
        engine.step(Add(request()))


def test_a_message_without_a_handler_is_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError, match="StartTrace has no handler"):
        Engine().step(StartTrace())


class StagedRunner:
    """A runner with two stages: a step is computed after the next one was submitted, or when its result is awaited."""

    def __init__(self) -> None:
        self._runner = FakeRunner(CACHE, VOCAB)
        self._entered: StepPlan | None = None  # in the first stage
        self._results: dict[int, StepResult] = {}
        self.most_in_flight = 0

    def submit(self, plan: StepPlan) -> Pending:
        self._compute()
        seqs = [seq._replace(block_tables=[[*table] for table in seq.block_tables]) for seq in plan.seqs]
        self._entered = plan._replace(prefill=tuple(seqs), decode=())
        self.most_in_flight = max(self.most_in_flight, len(self._results) + 1)

        def collect() -> StepResult:
            if plan.step_id not in self._results:
                self._compute()
            return self._results.pop(plan.step_id)

        return collect

    def _compute(self) -> None:
        if self._entered is not None:
            self._results[self._entered.step_id] = self._runner.execute(self._entered)
            self._entered = None


def test_two_steps_in_flight_give_the_same_tokens() -> None:
    """Chunked prompts, a cache that is too small for all, and requests that end while a step computes them."""
    runner = StagedRunner()
    engine = Engine(runner, depth=2)
    random = Random(5)
    prompts = {f"r{i}": tuple(random.choices(range(VOCAB), k=random.randint(1, 30))) for i in range(40)}
    is_preempted, aborted = False, set[str]()
    for name, prompt in prompts.items():
        engine.step(Add(Request(name, prompt, SamplingParams(12), arrival_time=100.0)))
        if name.endswith("7"):
            aborted.add(first := engine.scheduler.running_ids[0])
            engine.step(Abort(first))
        assert engine.scheduler.audit() == []
    for _ in range(2000):
        if engine.scheduler.has_work:
            engine.step()
            assert engine.scheduler.audit() == []
            is_preempted |= engine.outbox.sent[-1].report.preempted != ()
    assert runner.most_in_flight == 2
    assert is_preempted
    for name, prompt in prompts.items():
        events = engine.outbox.events(name)
        tokens = [event.token_id for event in events if event.token_id is not None]
        assert tokens == expected_tokens(prompt, 12, VOCAB)[: len(tokens)]
        assert events[-1].finish_reason == ("abort" if name in aborted else "length")
        assert len(tokens) == 12 or name in aborted
    assert not engine.step(Shutdown())
