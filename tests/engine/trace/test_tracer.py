"""Traces of a loop with fakes: lanes, spans and limits, without a device and with one that only tells times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from neuronserve.server.clock import ManualClock
from neuronserve.server.config import CacheConfig, SchedulerConfig, TraceConfig
from neuronserve.server.cost.pricer import StepPricer
from neuronserve.server.engine.fake_runner import FakeRunner
from neuronserve.server.engine.inbox import Inbox
from neuronserve.server.engine.loop import EngineLoop, Pending
from neuronserve.server.engine.trace.events import Lanes
from neuronserve.server.engine.trace.files import traced
from neuronserve.server.engine.trace.tracer import DeviceRunner, Tracer
from neuronserve.server.kernels.program import Program
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.link.messages import (
    Add,
    Command,
    EngineInfo,
    StartTrace,
    Tokens,
    TraceReply,
)
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, SamplingParams, StepPlan
from tests.api.serving import fake_facts
from tests.cost.pricing import small_pricer
from tests.engine.trace.trace_file import DEVICE, GRAPHS, HOST, PART, TraceFile
from tests.link.test_client import config

CACHE = CacheConfig(64, 16)
LABELS = ["embed", "norm", "logits"]


class Device:
    """Three instructions a step of 1 tick each, after 1 tick of inputs and before 1 tick of sampling."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock, self._runner, self._is_timed = clock, FakeRunner(CACHE, 1000), False
        self.timed: tuple[Program, np.ndarray] | None = None
        self._program = Program("toy", None)
        self.tick_s = 1e-3
        self._program.labels, self._program.collectives = LABELS, [False, True, False]

    def time_instructions(self, is_on: bool) -> None:
        self._is_timed, self.timed = is_on, None

    def submit(self, plan: StepPlan) -> Pending:
        begin = self._clock.now() + self.tick_s
        if self._is_timed:
            self.timed = self._program, begin + np.arange(4) * self.tick_s
        self._clock.advance(5 * self.tick_s)
        return self._runner.submit(plan)


class Bench:
    """A loop of which every command and output is at hand."""

    def __init__(self, max_events: int = 10_000, pricer: StepPricer | None = None) -> None:
        self.clock = ManualClock(100.0)
        self.device = Device(self.clock)
        self.commands: list[Command] = []
        self.sent: list[Tokens] = []
        self.tracer = Tracer(
            Lanes("inf2.xlarge", ("ND 0:NC 0", "ND 0:NC 1"), 7), self.clock, max_events, self.device, pricer
        )
        scheduler = Scheduler(
            SchedulerConfig(max_model_len=512, max_num_seqs=4, max_num_batched_tokens=32), KVCacheManager(CACHE)
        )
        self.has_work: Callable[[], bool] = lambda: scheduler.has_work
        self.loop = EngineLoop(
            scheduler,
            self.tracer.runner(self.device),
            self.clock,
            Inbox(self, {}, observers=[self.tracer.observe]),
            self.tracer.outbox(self),
        )

    def drain(self, timeout_s: float) -> list[Command]:
        commands, self.commands = self.commands, []
        return commands

    def put(self, tokens: Tokens) -> None:
        self.clock.advance(self.device.tick_s)
        self.sent.append(tokens)

    def serve(self, name: str, prompt: int = 40, output: int = 3) -> None:
        sampling = SamplingParams(max_tokens=output, ignore_eos=True)
        self.commands = [Add(Request(name, tuple(range(prompt)), sampling, self.clock.now()))]
        self.loop.step()
        while self.has_work():
            self.loop.step()


def test_every_core_has_a_lane_with_the_instructions_of_each_step(tmp_path: Path) -> None:
    bench = Bench()
    bench.tracer.start()
    bench.serve("a")  # 40 tokens in chunks of 32: two steps of prefill, two of decode
    reply = bench.tracer.stop(tmp_path / "t.json")
    trace = TraceFile(tmp_path / "t.json")
    assert (reply.file, reply.num_steps, reply.is_truncated) == (str(tmp_path / "t.json"), 4, False)
    assert reply.num_events == len(trace.events)
    assert trace.processes[DEVICE] == "NeuronCores of inf2.xlarge"
    assert [trace.lanes[DEVICE, core] for core in (0, 1)] == ["ND 0:NC 0", "ND 0:NC 1"]
    for core in (0, 1):
        assert trace.named(DEVICE, core, "instruction") == ["embed", "logits"] * 4
        assert trace.named(DEVICE, core, "collective") == ["all-reduce, norm"] * 4
        assert len(trace.named(DEVICE, core, "step")) == 4
    span = trace.spans[DEVICE, 1][1]
    assert (span["name"], span["ts"], span["dur"]) == ("embed", 1000.0, 1000.0)


def test_the_modelled_part_has_the_graphs_of_each_step_with_the_pricers_times(tmp_path: Path) -> None:
    pricer = small_pricer()
    bench = Bench(pricer=pricer)
    bench.tracer.start()
    bench.serve("a")  # 40 tokens in chunks of 32: two steps of prefill, two of decode
    reply = bench.tracer.stop(tmp_path / "t.json")
    trace = TraceFile(tmp_path / "t.json")
    assert reply.num_events == len(trace.events)
    assert trace.processes[PART] == "modelled inf2.xlarge, by the cost model"
    graphs = trace.check_part()
    assert [graph["name"] for graph in graphs] == ["prefill 128"] * 2 + ["decode 4 x 512"] * 2
    charged = [pricer.prefill_ns(0, 32), pricer.prefill_ns(32, 8), pricer.decode_ns(41, 1), pricer.decode_ns(42, 1)]
    assert [round(graph["dur"] * 1000) for graph in graphs] == charged
    assert [(graph["args"]["tokens"], graph["args"]["padding"]) for graph in graphs] == [
        (32, 96),
        (8, 120),
        (1, 3),
        (1, 3),
    ]


@pytest.mark.parametrize("tick_s", [1e-6, 0.1])  # a host faster than the accelerator, and a slower one
def test_a_modelled_step_begins_with_the_hosts_or_after_the_one_before(tick_s: float, tmp_path: Path) -> None:
    bench = Bench(pricer=small_pricer())
    bench.device.tick_s = tick_s
    bench.tracer.start()
    bench.serve("a", prompt=4, output=4)
    bench.tracer.stop(tmp_path / "t.json")
    trace = TraceFile(tmp_path / "t.json")
    graphs = trace.check_part()
    begins = [event["ts"] for event in trace.spans[HOST, 1] if event["name"] == "execute"]
    after = [0.0] + [graph["ts"] + graph["dur"] for graph in graphs]
    expected = [max(begin, end) for begin, end in zip(begins, after, strict=False)]
    assert [graph["ts"] for graph in graphs] == pytest.approx(expected, abs=0.002)
    assert len({graph["args"]["step"] for graph in trace.spans[PART, GRAPHS]}) == 4


def test_the_host_has_lanes_for_the_scheduler_and_the_runner(tmp_path: Path) -> None:
    bench = Bench()
    bench.tracer.start()
    bench.serve("a", prompt=4, output=1)
    bench.tracer.stop(tmp_path / "t.json")
    trace = TraceFile(tmp_path / "t.json")
    step = trace.named(HOST, 0)[0]
    assert step.startswith("step ")
    assert set(trace.named(HOST, 0)) == {step, "schedule", "apply", "send"}
    assert trace.named(HOST, 1) == ["execute", "fill inputs", "run toy", "sample"]
    durations = {event["name"]: event["dur"] for event in trace.spans[HOST, 1]}
    assert durations == {"execute": 5000.0, "fill inputs": 1000.0, "run toy": 3000.0, "sample": 1000.0}
    (whole,) = (event for event in trace.spans[HOST, 0] if event["name"] == step)
    assert whole["args"] | {"step": 0} == {"step": 0, "prefill_tokens": 4, "decode_tokens": 0, "sequences": 1}


def test_requests_are_async_spans_with_their_phases(tmp_path: Path) -> None:
    bench = Bench()
    bench.tracer.start()
    bench.serve("a")
    bench.tracer.stop(tmp_path / "t.json")
    events = TraceFile(tmp_path / "t.json").requests["a"]
    begins = {e["name"]: e["ts"] for e in events if e["ph"] == "b"}
    ends = {e["name"]: e["ts"] for e in events if e["ph"] == "e"}
    assert begins == {"request": 0, "queue": 0, "prefill": 0, "decode": 11_000.0}  # two steps of 5 ms, 1 ms to send
    assert ends["decode"] == ends["request"] == 23_000.0
    about = events[0]["args"]
    assert (about["prompt_tokens"], about["generated_tokens"], about["finish_reason"]) == (40, 3, "length")
    assert about["is_partial"] is False


def test_what_began_before_or_goes_on_after_is_marked(tmp_path: Path) -> None:
    bench = Bench()
    sampling = SamplingParams(max_tokens=9, ignore_eos=True)
    bench.commands = [Add(Request("early", (1, 2, 3), sampling, 100.0))]
    bench.loop.step()
    bench.tracer.start()
    bench.commands = [Add(Request("late", (1, 2, 3), sampling, bench.clock.now()))]
    bench.loop.step()
    bench.tracer.stop(tmp_path / "t.json")
    trace = TraceFile(tmp_path / "t.json")
    assert {name: events[0]["args"]["is_partial"] for name, events in trace.requests.items()} == {
        "early": True,
        "late": True,
    }
    assert [e["name"] for e in trace.requests["early"]] == ["request", "request"]
    assert [e["name"] for e in trace.requests["late"] if e["ph"] == "b"] == ["request", "queue", "prefill", "decode"]


@pytest.mark.parametrize("max_events", [1, 30, 100])
def test_a_file_is_no_larger_than_its_limit_and_says_what_is_missing(tmp_path: Path, max_events: int) -> None:
    bench = Bench(max_events)
    bench.tracer.start()
    for i in range(20):
        bench.serve(f"r{i}")
    reply = bench.tracer.stop(tmp_path / "t.json")
    trace = TraceFile(tmp_path / "t.json")
    assert reply.is_truncated
    assert len([e for e in trace.events if e["ph"] != "M"]) <= max_events
    ends = [event.finish_reason for tokens in bench.sent for event in tokens.events if event.finish_reason]
    assert ends == ["length"] * 20  # every request was served


def test_nothing_is_recorded_unless_it_is_asked_for(tmp_path: Path) -> None:
    bench = Bench()
    bench.serve("a")
    assert bench.device.timed is None
    bench.tracer.start()
    bench.serve("b")
    bench.tracer.stop(tmp_path / "t.json")
    bench.serve("c")
    assert bench.device.timed is None
    assert not bench.tracer.is_recording
    assert set(TraceFile(tmp_path / "t.json").requests) == {"b"}


def test_a_runner_without_a_device_still_shows_the_host(tmp_path: Path) -> None:
    bench = Bench()
    runner = FakeRunner(CACHE, 1000)
    assert not isinstance(runner, DeviceRunner)
    assert isinstance(bench.device, DeviceRunner)
    bench.tracer = Tracer(Lanes("none", (), 7), bench.clock, 1000, None)
    scheduler = Scheduler(SchedulerConfig(max_model_len=512), KVCacheManager(CACHE))
    inbox = Inbox(bench, {}, observers=[bench.tracer.observe])
    loop = EngineLoop(scheduler, bench.tracer.runner(runner), bench.clock, inbox, bench)
    bench.tracer.start()
    bench.commands = [Add(Request("a", (1,), SamplingParams(max_tokens=1), 100.0))]
    loop.step()
    bench.tracer.stop(tmp_path / "t.json")
    assert [name for (pid, _), name in TraceFile(tmp_path / "t.json").lanes.items() if pid == DEVICE] == []


def test_an_engine_without_a_trace_directory_answers_what_it_cannot_do() -> None:
    bench, replies = Bench(), list[TraceReply]()
    facts = fake_facts(config("fast"), 512)
    info = EngineInfo(512, CacheConfig(70, 16), 64, "inf2.xlarge", 1, "float32", 9, facts)
    engine = SimpleNamespace(info=info, runner=FakeRunner(CACHE, 1000), pricer=small_pricer())
    with traced(TraceConfig(), engine, bench, replies.append) as traces:
        traces.handlers[StartTrace](StartTrace())
        assert (traces.runner, traces.outbox, traces.observers) == (engine.runner, bench, ())
    assert replies == [TraceReply(error="this engine has no trace directory")]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    bench = Bench()
    bench.tracer.start()
    with pytest.raises(OSError, match="No such file"):
        bench.tracer.stop(tmp_path / "nowhere" / "t.json")
    assert list(tmp_path.iterdir()) == []
    assert not bench.tracer.is_recording
