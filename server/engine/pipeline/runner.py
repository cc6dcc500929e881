"""The first stage's runner: it begins steps, sends them around, and samples from the rows that come back.

Several steps may be on their way. Each reads the step inputs when it is submitted, and samples when it is collected.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from ...kernels.program import Program
from ...types import ScheduledSeq, StepPlan, StepResult, TokenLogprobs
from ..logits import PromptRow, prompt_logprobs, prompt_rows
from ..loop import Pending
from ..runner import ModelRunner
from .ring import Ring
from .rows import Rows, header_of, packed


class PipelineRunner(ModelRunner):
    """Runs the first layers and the output layer of one model; the layers between run in the other stages."""

    def close_ring(self, ring: Ring, tail: Program, stream: Rows) -> None:
        """Set the other stages, the program of the output layer, and the stream [tokens, padded hidden size]."""
        self._ring, self._tail, self._stream = ring, tail, stream

    def submit(self, plan: StepPlan) -> Pending:
        """Compute the first layers of every token, and send the step to the next stage."""
        begin, seqs = time.perf_counter(), plan.seqs
        targets = prompt_rows(seqs) if any(seq.prompt_targets for seq in plan.prefill) else []
        is_alone = len(seqs) == 1 and len(seqs[0].token_ids) == 1
        with self._pool.only(self.num_threads_alone if is_alone else self._pool.num_threads):
            self._begin(seqs, None, [target.row for target in targets])
        return partial(self._collect, plan, begin, targets)

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute the plan, with no other on its way."""
        return self.submit(plan)()

    def close(self) -> None:
        """Stop the stages and the worker threads."""
        self._ring.close()
        super().close()

    def _collect(self, plan: StepPlan, begin: float, targets: Sequence[PromptRow]) -> StepResult:
        sampled_seqs = [seq for seq in plan.seqs if seq.needs_sample]
        num_samples = sum(1 + seq.num_drafts for seq in sampled_seqs)
        self._ring.take(num_samples + len(targets), self._stream)
        self._run_tail(0, num_samples)
        decoded = time.perf_counter()
        sampled, further = self._sampler(sampled_seqs, self._inputs.address)
        prompts = self._logprobs(num_samples, targets)
        now = time.perf_counter()
        self.sampling_s += now - decoded
        return StepResult(plan.step_id, sampled, now - begin, prompt_logprobs=prompts, further=further)

    def _logprobs(self, first: int, targets: Sequence[PromptRow]) -> dict[str, tuple[TokenLogprobs, ...]]:
        """Return the log-probabilities of prompts' tokens, whose rows are in the stream from row `first` on."""
        found: dict[str, list[TokenLogprobs]] = {}
        for i in range(0, len(targets), self._sampler.num_rows):
            part = targets[i : i + self._sampler.num_rows]
            self._run_tail(first + i, len(part))
            rows = self._sampler.logits[: len(part), : self._sampler.num_ids]
            for target, logprobs in zip(part, prompt_logprobs(rows, part), strict=True):
                found.setdefault(target.request_id, []).append(logprobs)
        return {request_id: tuple(logprobs) for request_id, logprobs in found.items()}

    def _leave_logits(self, seq: ScheduledSeq) -> None:
        num_rows = len(seq.token_ids)
        self._begin([seq], range(num_rows), ())
        self._ring.take(num_rows, self._stream)
        self._run_tail(0, num_rows)

    def _begin(self, seqs: Sequence[ScheduledSeq], sampled: Sequence[int] | None, others: Sequence[int]) -> None:
        """Compute the first layers and send the step on. `sampled` rows (None: the plan's) come back, then `others`."""
        inputs = self._inputs
        program = self._programs.of(inputs.fill(seqs))
        if sampled is None:
            sampled = inputs.sample_rows[: sum(1 + seq.num_drafts for seq in seqs if seq.needs_sample)].tolist()
        header = header_of(inputs, seqs, [*sampled, *others])
        if self._is_timed:
            self.timed = program, self._pool.trace(program, inputs.address)
        else:
            self._pool.run(program, inputs.address, shares=self._row_shares(program))
        self._ring.send(packed(header, inputs, self._stream))

    def _run_tail(self, first: int, num_rows: int) -> None:
        """Compute the logits of `num_rows` rows of the stream from row `first` on."""
        self._inputs.sample(range(first, first + num_rows))
        self._pool.run(self._tail, self._inputs.address)
