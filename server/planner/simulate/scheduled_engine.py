"""An engine of the simulation that is the server's own: Scheduler and KVCacheManager, with a runner that only charges.

Every step is planned, charged and applied one by one. Prompts get synthetic token ids, so the prefix cache works on
what the workload says is shared.
"""

from __future__ import annotations

from collections.abc import Callable

from server.clock import NS
from server.config import CacheConfig, SchedulerConfig
from server.cost.pricer import StepPricer
from server.kv_cache.manager import KVCacheManager
from server.planner.simulate.records import NEVER, SHARES, EngineTotals, Records
from server.scheduler.scheduler import Scheduler
from server.types import Request, SampledToken, SamplingParams, StepPlan, StepResult, TokenEvent
from server.workload.workload import Workload


class ScheduledEngine:
    """Obeys server.planner.simulate.records.Engine."""

    def __init__(
        self, config: SchedulerConfig, cache: CacheConfig, pricer: StepPricer, workload: Workload, records: Records
    ) -> None:
        self.scheduler = Scheduler(config, KVCacheManager(cache))
        self.totals, self.end_ns = EngineTotals(), NEVER
        self._max_model_len = config.max_model_len
        self._pricer, self._workload, self._records = pricer, workload, records
        self._arrived: list[int] = []
        self.watch: Callable[[TokenEvent], None] | None = None  # is told of every token
        self._last_ns: dict[str, int] = {}  # time of the last token of each open request that has one
        self._plan: StepPlan | None = None

    @property
    def num_open(self) -> int:
        return len(self._arrived) + self.scheduler.num_running + self.scheduler.num_waiting

    def add(self, index: int, now_ns: int) -> None:  # noqa: ARG002 - this engine stops after every step anyway
        self._arrived.append(index)

    def plan(self, now_ns: int) -> None:
        for index in self._arrived:
            self.scheduler.add(request_of(self._workload, index, self._max_model_len))
        self._arrived.clear()
        if not self.scheduler.has_work:
            return
        plan = self.scheduler.schedule(now_ns / NS)
        assert not plan.is_empty, "every request was found to fit before it was added"
        for request_id in plan.admitted:
            self._records.scheduled_ns[int(request_id)] = now_ns
        self.totals.num_preemptions += len(plan.preempted)
        self._plan, self.end_ns = plan, self._charge(plan, now_ns)
        self.totals.count(1, self.end_ns - now_ns, len(plan.decode))

    def apply(self) -> None:
        assert self._plan is not None
        sampled = {
            seq.request_id: SampledToken(-1 - int(seq.request_id)) for seq in self._plan.seqs if seq.needs_sample
        }
        for event in self.scheduler.apply(self._plan, StepResult(self._plan.step_id, sampled, 0.0), self.end_ns / NS):
            self._record(event)
            if self.watch is not None:
                self.watch(event)
        self._plan, self.end_ns = None, NEVER

    def _charge(self, plan: StepPlan, now_ns: int) -> int:
        """The end of the step, when all its tokens come, those of prompts too: a server reads results once a step."""
        records = self._records
        for seq in plan.prefill:
            prefill_ns = self._pricer.prefill_ns(seq.start, len(seq.token_ids))
            records.prefill_shares[int(seq.request_id)] += prefill_ns * SHARES
            now_ns += prefill_ns
        if plan.decode:
            decode_ns = self._pricer.decode_ns(max(seq.start for seq in plan.decode) + 1)
            share = decode_ns * SHARES // len(plan.decode)
            now_ns += decode_ns
            for seq in plan.decode:
                records.decode_shares[int(seq.request_id)] += share
        return now_ns

    def _record(self, event: TokenEvent) -> None:
        records, index = self._records, int(event.request_id)
        assert event.token_id is not None
        now_ns = self.end_ns
        if event.index == 0:
            records.first_token_ns[index] = now_ns
            records.num_cached[index] = event.num_cached_tokens
        else:
            records.gaps[now_ns - self._last_ns[event.request_id]] += 1
        self._last_ns[event.request_id] = now_ns
        if event.finish_reason is not None:
            records.finish_ns[index], records.num_output[index] = now_ns, event.index + 1
            del self._last_ns[event.request_id]


def request_of(workload: Workload, index: int, max_model_len: int) -> Request:
    """Request `index`; ids sort as indices do, so that ties are served in order of the workload."""
    num_input = int(workload.input_len[index])
    num_output = min(int(workload.output_len[index]), max_model_len - num_input)
    arrival_s = int(workload.arrival_ns[index]) / NS
    return Request(f"{index:09d}", _prompt(workload, index, num_input), SamplingParams(num_output), arrival_s)


def _prompt(workload: Workload, index: int, num_input: int) -> tuple[int, ...]:
    """Each named block is its name over and over, the rest the request's own number, below 0 as no name is."""
    prompt: list[int] = []
    for name in workload.prefixes[index] if workload.prefixes else ():
        prompt += [name] * workload.prefix_block
    del prompt[num_input:]
    prompt += [-1 - index] * (num_input - len(prompt))
    return tuple(prompt)
