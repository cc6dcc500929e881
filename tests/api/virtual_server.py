"""A server's door and one engine in virtual time: its admission, journal and scheduler, steps priced as on the part.

Requests come, wait, are refused, come back and leave as a test says; nothing sleeps, and the same test gives the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from pathlib import Path

from neuronserve.planner.model_names import resolve_shape
from neuronserve.server.api.admission import Admission
from neuronserve.server.api.config import ApiConfig
from neuronserve.server.clock import NS
from neuronserve.server.config import CacheConfig, SchedulerConfig
from neuronserve.server.config.formats import Batching
from neuronserve.server.cost.model import CostModel
from neuronserve.server.cost.pricer import StepPricer
from neuronserve.server.device.buckets import powers_of_two
from neuronserve.server.device.catalog import instance
from neuronserve.server.errors import Overloaded
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.link.journal import Journal, OpenSequence
from neuronserve.server.link.messages import Tokens
from neuronserve.server.link.stream import TokenStream
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, SampledToken, SamplingParams, StepPlan, StepReport, StepResult

MODEL, PART, TP = "llama-8b", "inf2.8xlarge", 2
MAX_MODEL_LEN, BLOCK_SIZE, EOS = 2048, 32, 1
TTFT_LIMIT_S = 2.0


@cache
def pricer(slots: int) -> StepPricer:
    """Return the pricer of a model whose steps take 34 ms and more."""
    model = CostModel.of(resolve_shape(MODEL), instance(PART), TP)
    return StepPricer(model, slots, powers_of_two(MAX_MODEL_LEN), (MAX_MODEL_LEN,))


@dataclass(frozen=True)
class Asked:
    """One request of a client."""

    at_s: float
    num_prompt: int
    outputs: tuple[int, ...]  # tokens of each of its sequences until they end by themselves
    max_tokens: int | None = None  # that the client allows; None = as many as there will be
    priority: int = 0
    tenant: str = ""
    leaves_after_s: float | None = None  # whatever has come by then
    num_tries: int = 1  # comes back so often, each time after what it was told


@dataclass
class Fate:
    """Outcome of one request."""

    asked: Asked
    number: int = 0  # that its prompt begins with
    refusals: list[tuple[float, int]] = field(default_factory=list)  # when, and the seconds that it was told to wait
    taken_s: float | None = None
    first_s: float | None = None  # seconds until its first token since it was taken
    num_tokens: int = 0
    has_left: bool = False

    @property
    def is_in_time(self) -> bool:
        return self.first_s is not None and self.first_s <= TTFT_LIMIT_S


class VirtualEngine:
    """Stands in for neuronserve.server.link.engines.Engine; `clients` is itself, as of a server's engines."""

    is_up = True
    num_prefill = 0

    def __init__(self, num_places: int, batching: Batching, num_blocks: int = 4096) -> None:
        budget = 512 if batching == "continuous" else MAX_MODEL_LEN
        self.config = config = SchedulerConfig(MAX_MODEL_LEN, num_places, budget, batching=batching)
        self.scheduler = Scheduler(
            config, KVCacheManager(CacheConfig(num_blocks, BLOCK_SIZE, True, max_chunk=config.max_chunk))
        )
        self.journal = Journal()
        self.lengths: dict[str, int] = {}
        self._pricer = pricer(num_places)
        self._observers: list[Callable[[Tokens], None]] = []
        self.report: StepReport | None = None

    @property
    def clients(self) -> Sequence[VirtualEngine]:
        return [self]

    @property
    def num_open(self) -> int:
        return len(self.journal)

    def observe(self, observer: Callable[[Tokens], None]) -> None:
        self._observers.append(observer)

    def submit(self, requests: Iterable[Request], lengths: Iterable[int]) -> None:
        for request, length in zip(requests, lengths, strict=True):
            self.lengths[request.request_id] = length
            self.journal.add(OpenSequence(request, TokenStream([request.request_id], self.abort)))
            self.scheduler.add(request)

    def abort(self, request_id: str) -> None:
        self.journal.pop(request_id)
        self.scheduler.abort(request_id, 0.0)

    def step(self, now: float) -> tuple[float, Tokens]:
        """Seconds of a step that begins now, and the turn."""
        plan = self.scheduler.schedule(now)
        seconds = self._pricer.charge(plan).ns / NS
        result = self._execute(plan)
        events = self.scheduler.apply(plan, result, now + seconds)
        return seconds, Tokens(events, self.scheduler.report(plan, result, now + seconds))

    def deliver(self, turn: Tokens) -> None:
        """Deliver a turn of the engine to the server."""
        self.report = turn.report
        self.journal.take_turn(turn)
        for observer in self._observers:
            observer(turn)

    def _execute(self, plan: StepPlan) -> StepResult:
        sampled = {}
        for seq in plan.seqs:
            if seq.needs_sample:
                is_last = len(seq.history) - seq.num_prompt_tokens + 1 >= self.lengths[seq.request_id]
                sampled[seq.request_id] = SampledToken(EOS if is_last else EOS + 1)
        return StepResult(plan.step_id, sampled, 0.0)


class VirtualServer:
    """Clients, the door and the engine."""

    def __init__(
        self, *, num_places: int = 16, batching: Batching = "continuous", limit_s: float | None = TTFT_LIMIT_S
    ) -> None:
        self.engine = VirtualEngine(num_places, batching)
        config = ApiConfig(
            ("m",),
            Path(),
            Path(),
            max_num_seqs=num_places,
            ttft_slo_ms=None if limit_s is None else limit_s * 1000,
        )
        self.admission = Admission(config, self.engine)  # type: ignore[arg-type]
        self._patience_s = config.patience_s
        self.now, self.end_s = 0.0, 0.0
        self.fates: list[Fate] = []
        self.by_sequence: dict[str, Fate] = {}
        self._acts: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._acts, (time_s, next(self._order), act))

    def run(self, asked: Iterable[Asked], until_s: float) -> None:
        """Serve requests until a time, and then to the end of the admitted ones."""
        for each in asked:
            fate = Fate(each, len(self.fates))
            self.fates.append(fate)
            self.at(each.at_s, partial(self._ask, fate))
        while True:
            while self._acts and self._acts[0][0] <= self.now:
                heapq.heappop(self._acts)[-1]()
            if self.engine.scheduler.has_work:
                self._step()
            elif self._acts and self._acts[0][0] < until_s:
                self.now = self._acts[0][0]
            else:
                return

    def _step(self) -> None:
        seconds, turn = self.engine.step(self.now)
        end = self.now + seconds
        while self._acts and self._acts[0][0] < end:  # during the step the server knows nothing of it
            self.now = self._acts[0][0]
            heapq.heappop(self._acts)[-1]()
        self.now = end
        self.engine.deliver(turn)
        for event in turn.events:
            fate = self.by_sequence[event.request_id]
            fate.num_tokens += event.token_id is not None
            if fate.first_s is None and fate.taken_s is not None and event.index == 0:
                fate.first_s = self.now - fate.taken_s
            self.end_s = self.now

    def _ask(self, fate: Fate) -> None:
        asked, number = fate.asked, len(self.by_sequence)
        most = max(asked.outputs) if asked.max_tokens is None else asked.max_tokens
        prompt = (fate.number, *[2 + fate.number % 7] * (asked.num_prompt - 1))
        requests = [
            Request(
                f"r{number + i:06}", prompt, SamplingParams(most, eos_token_ids=(EOS,)), self.now,
                priority=asked.priority, tenant=asked.tenant, due_time=self.now + self._patience_s,
            )
            for i in range(len(asked.outputs))
        ]  # fmt: skip
        try:
            self.admission.check(requests, None)
        except Overloaded as refusal:
            fate.refusals.append((self.now, refusal.retry_after_s))
            if len(fate.refusals) < asked.num_tries:
                self.at(self.now + refusal.retry_after_s, partial(self._ask, fate))
            return
        fate.taken_s = self.now
        self.by_sequence |= dict.fromkeys((each.request_id for each in requests), fate)
        self.engine.submit(requests, asked.outputs)
        if asked.leaves_after_s is not None:
            self.at(self.now + asked.leaves_after_s, partial(self._leave, fate, [each.request_id for each in requests]))

    def _leave(self, fate: Fate, request_ids: Sequence[str]) -> None:
        fate.has_left = True
        for request_id in request_ids:
            if request_id in self.engine.scheduler.open_ids:
                self.engine.abort(request_id)
