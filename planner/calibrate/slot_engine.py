"""An engine as text-generation-inference drives a Neuron graph: fixed slots, prompts in batches, a host between steps.

The published load tests were measured on this scheduler, not on this server's. Its router encodes waiting prompts
together while all slots stand still. While slots are busy, prompts wait for more prompts (`--waiting-served-ratio`),
but at most `--max-waiting-tokens` steps.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import itemgetter

from ...server.scheduler.batching import BatchingPolicy
from ...workload.workload import Workload
from ..simulate.records import NEVER, EngineTotals, Records


@dataclass(frozen=True, slots=True)
class SlotTimes:
    """Nanoseconds of one engine's work."""

    prefill_ns: int  # of one prompt; prompts of a call run one after another
    decode_ns: int  # of one step of all slots, on the device
    host_ns: tuple[int, ...]  # host time of a step, by the number of busy slots
    request_host_ns: int  # between sending and the router's queue: HTTP, tokenizing

    def step_ns(self, busy: int) -> int:
        """Return the nanoseconds of a decode step with `busy` slots in use."""
        return self.decode_ns + self.host_ns[busy]


class SlotEngine:
    """Implements planner.simulate.records.Engine without cost and gaps between tokens, which no load test prints."""

    def __init__(
        self, num_slots: int, policy: BatchingPolicy, times: SlotTimes, workload: Workload, records: Records
    ) -> None:
        self.totals, self.end_ns = EngineTotals(), NEVER
        self._num_slots, self._policy, self._times = num_slots, policy, times
        self._output_len, self._records = workload.output_len, records
        self._waiting: list[tuple[int, int]] = []  # (time in the queue, index), in order
        self._ends: list[tuple[int, int]] = []  # heap of (clock at its last token, index) of each busy slot
        self._clock = self._last_prefill = 0  # decode steps so far; at the last call that encoded prompts
        self._new: list[int] = []  # prompts that the plan encodes
        self._prompt_ns = 0  # end of their encoding
        self._steps = self._step_ns = 0  # equal decode steps planned behind it

    @property
    def num_open(self) -> int:
        return len(self._waiting) + len(self._ends) + len(self._new)

    def add(self, index: int, now_ns: int) -> None:
        ready_ns = now_ns + self._times.request_host_ns
        self._waiting.append((ready_ns, index))
        if self._steps > 1:
            self._steps = min(self._steps, self._steps_until(ready_ns))
            self.end_ns = self._prompt_ns + self._steps * self._step_ns

    def plan(self, now_ns: int) -> None:
        self._prompt_ns = now_ns
        ready = bisect_right(self._waiting, now_ns, key=itemgetter(0))
        if ready and self._may_encode(ready):
            self._encode(ready, now_ns)
        busy = len(self._ends) + sum(self._output_len[index] > 1 for index in self._new)
        self._step_ns = self._times.step_ns(busy) if busy else 0
        self._steps = self._run_length(ready) if busy else 0
        if busy or self._new:
            self.end_ns = self._prompt_ns + self._steps * self._step_ns
        elif self._waiting:
            self.end_ns = self._waiting[0][0]  # idle until the first request is in the queue

    def apply(self) -> None:
        now_ns, self.end_ns = self.end_ns, NEVER
        for index in self._new:
            self._records.first_token_ns[index] = self._prompt_ns
            left = int(self._output_len[index]) - 1
            if left:
                heappush(self._ends, (self._clock + left, index))
            else:
                self._finish(index, self._prompt_ns)
        self._new = []
        self._clock, self._steps = self._clock + self._steps, 0
        while self._ends and self._ends[0][0] == self._clock:
            self._finish(heappop(self._ends)[1], now_ns)

    def _run_length(self, ready: int) -> int:
        """Return the steps until the slots or the queue may change."""
        if self._new:
            return 1
        steps = self._ends[0][0] - self._clock
        if ready and len(self._ends) < self._num_slots:
            steps = int(min(steps, self._last_prefill + self._policy.max_waiting_steps - self._clock))
        if ready < len(self._waiting):
            steps = min(steps, self._steps_until(self._waiting[ready][0]))
        return max(1, steps)

    def _steps_until(self, time_ns: int) -> int:
        """Return the steps from the start of the run to the end of the step at `time_ns`."""
        return max(1, -(-(time_ns - self._prompt_ns) // self._step_ns))

    def _may_encode(self, ready: int) -> bool:
        busy, policy = len(self._ends), self._policy
        if busy >= self._num_slots:
            return False
        is_overdue = self._clock - self._last_prefill >= policy.max_waiting_steps
        return not busy or is_overdue or ready + 1 > busy * policy.waiting_ratio

    def _encode(self, ready: int, now_ns: int) -> None:
        """Encode prompts in one call; the tokens of all come when the last is encoded."""
        count = min(ready, self._num_slots - len(self._ends), self._policy.max_prompts or ready)
        self._new = [index for _, index in self._waiting[:count]]
        del self._waiting[:count]
        self._prompt_ns += count * self._times.prefill_ns
        for index in self._new:
            self._records.scheduled_ns[index] = now_ns
        self._last_prefill = self._clock

    def _finish(self, index: int, now_ns: int) -> None:
        self._records.finish_ns[index] = now_ns
        self._records.num_output[index] = self._output_len[index]
