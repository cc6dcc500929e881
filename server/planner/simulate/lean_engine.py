"""An engine of the simulation that decides exactly as Scheduler does, for prompts that share nothing, but counts tokens
instead of keeping them, and takes a run of equal decode steps in one go.

A run lasts while nothing can change: until a sequence finishes, the bucket or the blocks run out, or an arrival that
could be admitted. tests/planner/test_simulator_engines.py holds every record against ScheduledEngine, bit by bit.
"""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heappush
from operator import attrgetter

from server.config import CacheConfig, SchedulerConfig
from server.cost.pricer import StepPricer
from server.planner.simulate.lean_cache import LeanCache, Owner
from server.planner.simulate.records import NEVER, SHARES, EngineTotals, Records
from server.workload.workload import Workload

_by_index = attrgetter("index")


class _Seq(Owner):
    """One open request. While it is in the decode group, `known = clock + offset`, and one less is computed."""

    __slots__ = ("computed", "final", "index", "known", "last_ns", "offset", "prompt", "share_at_join")

    def __init__(self, index: int, prompt: int, final: int) -> None:
        super().__init__()
        self.index, self.prompt, self.final = index, prompt, final
        self.known, self.computed, self.offset = prompt, 0, 0
        self.last_ns = NEVER  # of its last token, while it is not in the group
        self.share_at_join = 0

    @property
    def is_decode(self) -> bool:
        return self.computed >= self.prompt and self.known - self.computed == 1


class LeanEngine:
    """Obeys server.planner.simulate.records.Engine."""

    def __init__(
        self, config: SchedulerConfig, cache: CacheConfig, pricer: StepPricer, workload: Workload, records: Records
    ) -> None:
        self.totals, self.end_ns = EngineTotals(), NEVER
        self._config, self._pricer, self._records = config, pricer, records
        self._input_len, self._output_len = workload.input_len, workload.output_len
        self._size, self._is_caching = cache.block_size, cache.enable_prefix_caching
        self._cache = LeanCache(cache.num_blocks)
        self._waiting: list[_Seq] = []  # in order of service
        self._partial: list[_Seq] = []  # running, not in the group: prompts under way; in order of service
        self._group: dict[int, _Seq] = {}  # running: one token in each step
        self._ends: list[tuple[int, int, _Seq]] = []  # heap of (clock at the last token, index, sequence) of the group
        self._due = [0] * self._size  # group members that need a block when clock % size is this
        self._clock = 0  # steps that the group has taken
        self._share = 0  # device shares that one member has been charged for in all steps so far
        # The plan: `_steps` steps of `_step_ns` from `_start_ns`; `_placed` are (sequence, tokens) outside the group.
        self._start_ns = self._step_ns = self._decode_ns = self._steps = 0
        self._placed: list[tuple[_Seq, int]] = []
        self._is_open_to_arrivals = False

    @property
    def num_open(self) -> int:
        return len(self._waiting) + self._num_running

    @property
    def _num_running(self) -> int:
        return len(self._partial) + len(self._group)

    def add(self, index: int, now_ns: int) -> None:
        prompt = int(self._input_len[index])
        final = min(prompt + int(self._output_len[index]), self._config.max_model_len)
        self._waiting.append(_Seq(index, prompt, final))
        if self._is_open_to_arrivals and self._steps > 1:
            # It may be admitted when the step under way ends.
            self._is_open_to_arrivals = False
            self._steps = min(self._steps, -(-(now_ns - self._start_ns) // self._step_ns))
            self.end_ns = self._start_ns + self._steps * self._step_ns

    def plan(self, now_ns: int) -> None:
        if not self.num_open:
            return
        self._start_ns = now_ns
        was_preempting = self._grow()
        budget = self._config.max_num_batched_tokens - len(self._group)
        self._placed = []
        budget = self._continue(budget)
        if not was_preempting:
            self._admit(budget, now_ns)
        self._charge()
        is_run = not (self._placed or was_preempting)
        self._steps = self._run_length() if is_run else 1
        # A queue that is not empty is stuck until the run ends, and nobody overtakes.
        self._is_open_to_arrivals = is_run and not self._waiting and self._num_running < self._config.max_num_seqs
        self.end_ns = now_ns + self._steps * self._step_ns

    def apply(self) -> None:
        steps, now_ns = self._steps, self.end_ns
        self._step_group(steps, now_ns)
        for seq, count in self._placed:
            seq.computed += count
            if seq.computed == seq.known:
                self._take_token(seq, now_ns)
        self.end_ns = NEVER

    # --- scheduling

    def _grow(self) -> bool:
        """The blocks of the group's next tokens, by preemption if need be; whether there was any."""
        need = self._due[self._clock % self._size]
        if need <= self._cache.num_free:
            self._cache.take(need)
            return False
        due = self._clock % self._size
        for seq in sorted(self._group.values(), key=_by_index):
            if seq.index in self._group and self._due_of(seq) == due:
                self._grow_one(seq)
        return True

    def _grow_one(self, seq: _Seq) -> None:
        while self._cache.num_free == 0:
            last = max((*self._partial[-1:], *self._group.values()), key=_by_index)
            self._preempt(last)
            if last is seq:
                return
        self._cache.take(1)

    def _preempt(self, seq: _Seq) -> None:
        self.totals.num_preemptions += 1
        if seq.index in self._group:
            self._leave(seq)
            seq.last_ns = self._start_ns
            self._ends = [end for end in self._ends if end[2] is not seq]
            heapify(self._ends)
            held = -(-seq.computed // self._size)  # the block of its next token was not taken yet
        else:
            self._partial.remove(seq)
            held = -(-seq.known // self._size)
        self._free(seq, held, seq)
        seq.computed = 0
        insort(self._waiting, seq, key=_by_index)

    def _continue(self, budget: int) -> int:
        """Place those under way: first any that has one token left past its prompt, which counts as decode."""
        for is_decode in (True, False):
            for seq in self._partial:
                if budget and seq.is_decode is is_decode:
                    budget -= self._place(seq, budget)
        return budget

    def _admit(self, budget: int, now_ns: int) -> None:
        while self._waiting and budget and self._num_running < self._config.max_num_seqs:
            seq = self._waiting[0]
            need = -(-seq.known // self._size)
            if need + self._num_running > self._cache.num_free:
                return
            hit = self._cache.revive(seq)
            self._cache.take(need - hit)
            seq.computed = hit * self._size
            del self._waiting[0]
            insort(self._partial, seq, key=_by_index)
            if self._records.scheduled_ns[seq.index] == NEVER:
                self._records.scheduled_ns[seq.index] = now_ns
            budget -= self._place(seq, budget)

    def _place(self, seq: _Seq, budget: int) -> int:
        count = min(budget, seq.known - seq.computed)
        self._placed.append((seq, count))
        return count

    # --- time

    def _charge(self) -> None:
        """Prompts one after another, then one decode; sets the length of the step, at whose end all tokens come."""
        records, odd, step_ns = self._records, [], 0
        context = self._longest()
        for seq, count in self._placed:
            if seq.is_decode:
                odd.append(seq)
                context = max(context, seq.known)
                continue
            prefill_ns = self._pricer.prefill_ns(seq.computed, count)
            records.prefill_shares[seq.index] += prefill_ns * SHARES
            step_ns += prefill_ns
        self._decode_ns = self._pricer.decode_ns(context) if context else 0
        for seq in odd:
            records.decode_shares[seq.index] += self._decode_ns * SHARES // (len(odd) + len(self._group))
        self._step_ns = step_ns + self._decode_ns

    def _longest(self) -> int:
        """Tokens of the longest context of the group; any will do when there is one bucket only."""
        if not self._group:
            return 0
        if len(self._pricer.decode_buckets) == 1:
            return 1
        return self._clock + max(seq.offset for seq in self._group.values())

    def _run_length(self) -> int:
        """Steps like this one that nothing but an arrival can end; the blocks of the first are taken."""
        steps = self._ends[0][0] - self._clock
        if len(self._pricer.decode_buckets) > 1:
            context = self._longest()
            steps = min(steps, self._pricer.decode_bucket(context) - context + 1)
        free = self._cache.num_free
        if len(self._group) * (steps // self._size + 1) <= free or self._growth(steps) <= free:
            return steps
        low, high = 1, steps  # growth(low) fits, growth(high) does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._growth(middle) <= free else (low, middle)
        return low

    def _growth(self, steps: int) -> int:
        """Blocks that steps 2 to `steps` of the run need."""
        rounds, rest = divmod(steps - 1, self._size)
        first = (self._clock + 1) % self._size
        end = first + rest
        part = sum(self._due[first:end]) + (sum(self._due[: end - self._size]) if end > self._size else 0)
        return rounds * len(self._group) + part

    # --- results

    def _step_group(self, steps: int, now_ns: int) -> None:
        """Let `steps` steps have happened."""
        size, step_ns = len(self._group), self._step_ns
        num_odd = sum(seq.is_decode for seq, _ in self._placed)
        self.totals.count(steps, step_ns, size + num_odd)
        if not size:
            return
        if steps > 1:
            self._cache.take(self._growth(steps))
        self._clock += steps
        self._share += steps * (self._decode_ns * SHARES // (size + num_odd))
        self._records.gaps[step_ns] += steps * size
        while self._ends and self._ends[0][0] == self._clock:
            seq = heappop(self._ends)[2]
            self._leave(seq)
            self._finish(seq, now_ns)

    def _take_token(self, seq: _Seq, now_ns: int) -> None:
        """The token of a sequence outside the group: it either finishes or joins."""
        seq.known += 1
        records, index = self._records, seq.index
        if seq.last_ns == NEVER:
            records.first_token_ns[index] = now_ns
        else:
            records.gaps[now_ns - seq.last_ns] += 1
        seq.last_ns = now_ns
        self._partial.remove(seq)
        if seq.known == seq.final:
            self._finish(seq, now_ns)
        else:
            self._join(seq)

    def _finish(self, seq: _Seq, now_ns: int) -> None:
        self._records.finish_ns[seq.index] = now_ns
        self._records.num_output[seq.index] = seq.final - seq.prompt
        self._free(seq, -(-seq.computed // self._size), None)

    def _free(self, seq: _Seq, held: int, owner: Owner | None) -> None:
        named = seq.computed // self._size if self._is_caching else 0
        self._cache.release(named, held - named, owner)

    # --- the group

    def _due_of(self, seq: _Seq) -> int:
        """The clock, modulo the block size, at which it needs a block: when what is computed fills its blocks."""
        return (1 - seq.offset) % self._size

    def _join(self, seq: _Seq) -> None:
        seq.offset = seq.known - self._clock
        seq.share_at_join = self._share
        self._group[seq.index] = seq
        self._due[self._due_of(seq)] += 1
        heappush(self._ends, (seq.final - seq.offset, seq.index, seq))

    def _leave(self, seq: _Seq) -> None:
        """Out of the group, with its counts made its own again. Its entry in `_ends` is the caller's business."""
        del self._group[seq.index]
        self._due[self._due_of(seq)] -= 1
        seq.known = self._clock + seq.offset
        seq.computed = seq.known - 1
        self._records.decode_shares[seq.index] += self._share - seq.share_at_join
