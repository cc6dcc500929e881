"""The model runner: executes step plans on the emulated cores."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..config import CacheConfig
from ..host.row_shares import NEAR_WEIGHT_BYTES, row_shares
from ..kernels.isa.jit import Kernel
from ..kernels.program import Program
from ..kernels.workers import WorkerPool
from ..kv_cache.blocks import NULL_BLOCK
from ..kv_cache.manager import KVCacheManager
from ..kv_cache.state_slots import placed
from ..types import Encoding, MediaItem, Request, SamplingParams, ScheduledSeq, StepPlan, StepResult, TokenLogprobs
from .logits import prompt_logprobs, prompt_rows
from .loop import Pending
from .sampler import Sampler
from .step_inputs import StepInputs

_FIT_RUNS = 15
_LEAST_GAIN = 1.25  # speedup that makes a second CPU worth taking from the API process and others (kernels.md)
_LONG_STEP_S = 0.005  # a longer step is memory-bound, or large enough to divide
_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
Around = Callable[[StepPlan, Callable[[StepPlan], StepResult]], StepResult]  # of a plan and what computes it


@dataclass(frozen=True, slots=True)
class Programs:
    """A program for steps without adapters and one for steps with them; rows without an adapter are equal in both."""

    plain: Program
    adapted: Program | None = None  # None when no adapter can be loaded

    @property
    def kernels(self) -> Sequence[Kernel]:
        """Kernels of both programs."""
        return [kernel for each in (self.plain, self.adapted) if each is not None for kernel in each.kernels]

    def of(self, num_groups: int) -> Program:
        """Return the program of a step with `num_groups` adapters."""
        return self.plain if self.adapted is None or not num_groups else self.adapted


class Encoder(Protocol):
    """Computes encodings (scheduler/encodings.py)."""

    def refusal(self, request: Request) -> str | None:
        """Return why the media of a request cannot be encoded; None when they can."""
        ...

    def encode(self, encodings: Sequence[Encoding]) -> None:
        """Compute the encodings of one step, and leave their results in their blocks."""
        ...


class ModelRunner:
    """Runs one model on one group of cores. Not thread-safe: one engine loop owns it."""

    def __init__(
        self, pool: WorkerPool, programs: Programs, inputs: StepInputs, sampler: Sampler, cache: CacheConfig
    ) -> None:
        self._pool, self._programs, self._inputs, self._sampler = pool, programs, inputs, sampler
        self._cache = cache
        self.encoder: Encoder | None = None  # None: nothing waits for encodings
        self.around: Around | None = None  # what is computed before and after steps (draft_model.py)
        self._is_timed = False
        self.num_threads_alone = pool.num_threads  # host threads that run a step of one token
        self.sampling_s = 0.0  # host time spent choosing tokens since the runner was made
        self.timed: tuple[Program, npt.NDArray[np.float64]] | None = None  # the program that ran last, and its times

    @property
    def inputs(self) -> StepInputs:
        """The arrays of a step."""
        return self._inputs

    @property
    def pool(self) -> WorkerPool:
        """The host threads that compute for the cores."""
        return self._pool

    def submit(self, plan: StepPlan) -> Pending:
        """Compute the plan at once: there is one set of step inputs, so one step is in flight at most."""
        result = self.execute(plan)
        return lambda: result

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute the encodings of the plan, or every token, and sample for the sequences that need it."""
        if plan.encodings:
            assert self.encoder is not None
            begin, self.timed = time.perf_counter(), None
            self.encoder.encode(plan.encodings)
            return StepResult(plan.step_id, {}, time.perf_counter() - begin)
        return self._execute(plan) if self.around is None else self.around(plan, self._execute)

    def _execute(self, plan: StepPlan) -> StepResult:
        is_alone = len(plan.seqs) == 1 and len(plan.seqs[0].token_ids) == 1
        with self._pool.only(self.num_threads_alone if is_alone else self._pool.num_threads):
            return self._compute(plan)

    def _compute(self, plan: StepPlan) -> StepResult:
        begin = time.perf_counter()
        seqs = plan.seqs
        program = self._programs.of(self._inputs.fill(seqs))
        if self._is_timed:
            self.timed = program, self._pool.trace(program, self._inputs.address)
        else:
            self._pool.run(program, self._inputs.address, shares=self._row_shares(program))
        decoded = time.perf_counter()
        sampled, further = self._sampler([seq for seq in seqs if seq.needs_sample], self._inputs.address)
        prompts = self._prompt_logprobs(program, seqs) if any(seq.prompt_targets for seq in plan.prefill) else {}
        now = time.perf_counter()
        self.sampling_s += now - decoded
        return StepResult(plan.step_id, sampled, now - begin, prompt_logprobs=prompts, further=further)

    def _row_shares(self, program: Program) -> int:
        if not program.is_by_rows or program.weight_bytes > NEAR_WEIGHT_BYTES:
            return 0
        return row_shares(self._inputs.alone, self._pool.num_available)

    def _prompt_logprobs(self, program: Program, seqs: Sequence[ScheduledSeq]) -> dict[str, tuple[TokenLogprobs, ...]]:
        """Return the log-probabilities of the prompts' tokens in the step that `program` has just computed.

        The program's head runs again for as many rows as there is room for, and never twice for a row, because it adds
        the row's partial sums to the stream. None of these rows was sampled.
        """
        targets = prompt_rows(seqs)
        found: dict[str, list[TokenLogprobs]] = {}
        for first in range(0, len(targets), self._sampler.num_rows):
            part = targets[first : first + self._sampler.num_rows]
            self._inputs.sample([target.row for target in part])
            self._pool.run(program, self._inputs.address, program.head)
            rows = self._sampler.logits[: len(part), : self._sampler.num_ids]
            for target, logprobs in zip(part, prompt_logprobs(rows, part), strict=True):
                found.setdefault(target.request_id, []).append(logprobs)
        return {request_id: tuple(logprobs) for request_id, logprobs in found.items()}

    def logits(
        self,
        token_ids: Sequence[int],
        lora: str = "",
        media: tuple[MediaItem, ...] = (),
        encoded: Sequence[int] = (),
    ) -> npt.NDArray[np.float32]:
        """Return the logits [T, vocab] of one sequence at every position, prefilled in chunks through the paged cache.

        `lora` is the digest of a loaded adapter, "" for none; `encoded` are the blocks with encodings of `media`.
        Overwrites blocks of the cache, so the engine must not serve. Raises StepTooLarge when the cache cannot hold the
        sequence.
        """
        cache = KVCacheManager(replace(self._cache, enable_prefix_caching=False))
        blocks = cache.open("")
        rows, vocab = self._sampler.num_rows, self._sampler.vocab_size
        out = np.empty((len(token_ids), vocab), np.float32)
        for start in range(0, len(token_ids), rows):
            chunk = tuple(token_ids[start : start + rows])
            cache.drop(blocks, start)
            cache.allocate(blocks, start + len(chunk))  # without blocks the inputs refuse the chunk
            known = token_ids, len(token_ids), lora, None, media, encoded
            state = placed(cache.states, blocks.state, (start, start + len(chunk)), len(token_ids))
            seq = ScheduledSeq("logits", chunk, start, blocks.tables, True, _GREEDY, *known, state)
            self._leave_logits(seq)
            out[start : start + len(chunk)] = self._sampler.logits[: len(chunk), :vocab]
        return out

    def _leave_logits(self, seq: ScheduledSeq) -> None:
        """Compute the logits of every token of `seq`."""
        program = self._programs.of(self._inputs.fill([seq]))
        self._inputs.sample(range(len(seq.token_ids)))
        self._pool.run(program, self._inputs.address)

    def time_instructions(self, is_on: bool) -> None:
        """Time every instruction into `timed` from the next step on, as WorkerPool.trace does, or stop it."""
        self._is_timed, self.timed = is_on, None

    def warm_up(self, fit_threads: bool = False, threads_alone: int | None = None) -> None:
        """Run every kernel once, on the null block, so that the first request is not slower.

        With `fit_threads`, also measure how many host threads a step of one token is worth, unless `threads_alone` is
        given.
        """
        tables = [[NULL_BLOCK] for _ in self._cache.groups]
        seq = ScheduledSeq("warm-up", (0,), 0, tables, True, _GREEDY, (0,), 1)
        plan = StepPlan(step_id=-1, prefill=(), decode=(seq,))
        self.execute(plan)
        if self._programs.adapted is not None:
            self._pool.run(self._programs.adapted, self._inputs.address)
        if threads_alone is not None:
            self.num_threads_alone = threads_alone
        elif fit_threads and self._pool.num_threads > 1:
            self.num_threads_alone = fitting_threads(self._pool.num_threads, lambda n: self._seconds_on(n, plan))

    def _seconds_on(self, num_threads: int, plan: StepPlan) -> float:
        self.num_threads_alone = num_threads
        return self.execute(plan).seconds

    def close(self) -> None:
        """Stop the worker threads."""
        self._pool.close()


def fitting_threads(most: int, seconds_on: Callable[[int], float]) -> int:
    """Return 1 or `most` threads for a step that takes `seconds_on(threads)`: 1 unless `most` is `_LEAST_GAIN` faster.

    Both are measured in turns and the median gain counts: when other processes take the CPUs, threads that wait for
    each other gain nothing. A step that is long even at its fastest is divided.
    """
    fastest, gains = math.inf, []
    for _ in range(_FIT_RUNS):
        alone, shared = seconds_on(1), seconds_on(most)
        gains.append(alone / shared)
        fastest = min(fastest, alone, shared)
        if fastest > _LONG_STEP_S:
            return most
    return most if statistics.median(gains) >= _LEAST_GAIN else 1
