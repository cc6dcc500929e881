"""Drafts by a second, smaller model with the same tokenizer, on the same cores.

Its keys and values are in the blocks of the model's, so they are shared, preempted, copied and freed with them. It
computes a prompt's chunks beside the model, and of later tokens those that it has missed when it drafts: a sequence
without drafts costs it nothing. It remembers nothing of a sequence but which positions of its blocks are computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..types import SampledToken, ScheduledSeq, StepPlan, StepResult
from .runner import ModelRunner

NO_GUESS = 0  # takes the place of a draft that could not be sampled: a guess like any other


class DraftModel:
    """Implements neuronserve.server.engine.runner.Around."""

    def __init__(self, runner: ModelRunner, group: int, known: npt.NDArray[np.bool_], num_ids: int) -> None:
        """Draft with `runner`, whose model has `num_ids` tokens, in the blocks of table `group` of each sequence.

        `known` [blocks, block_size]: whether a position has the draft model's keys and values.
        """
        self.runner, self._group, self._known, self._num_ids = runner, group, known, num_ids
        self._slots, self._most = known.reshape(-1), len(runner.inputs.token_ids)

    def __call__(self, plan: StepPlan, compute: Callable[[StepPlan], StepResult]) -> StepResult:
        """Compute `plan` with drafts in the places that it has for them."""
        begin = time.perf_counter()
        plan = self._propose(plan)
        draft_s = time.perf_counter() - begin
        result = compute(plan)
        for seq in plan.decode:  # the last token of each is computed by the model alone; wrong drafts are replaced
            self._known[self._place(seq, seq.start + seq.num_drafts)] = False
        return result._replace(seconds=result.seconds + draft_s, draft_s=draft_s)

    def _propose(self, plan: StepPlan) -> StepPlan:
        """Return `plan` with drafts in place of each sequence's `num_drafts` last tokens."""
        going = [seq for seq in plan.decode if seq.num_drafts]
        texts = {seq.request_id: [*seq.history] for seq in going}
        rows = [self._missed(seq, seq.history, seq.start + len(seq.token_ids)) for seq in plan.prefill]
        rows += [self._missed(seq, texts[seq.request_id], seq.start + 1) for seq in going]
        while rows:  # once for each draft of the longest row of drafts
            sampled = self._compute(rows)
            going = [seq for seq in going if _goes_on(seq, texts[seq.request_id], sampled[seq.request_id])]
            ends = [(seq, texts[seq.request_id]) for seq in going]
            rows = [self._row(seq, text, len(text) - 1, len(text)) for seq, text in ends]
        if not texts:
            return plan
        drafts = {seq.request_id: texts[seq.request_id][len(seq.history) :] for seq in plan.decode if seq.num_drafts}
        decode = [seq._replace(token_ids=(seq.token_ids[0], *drafts.get(seq.request_id, ()))) for seq in plan.decode]
        return plan._replace(decode=tuple(decode))

    def _place(self, seq: ScheduledSeq, position: int) -> tuple[int, int]:
        """Return the block of a position, and the position in it."""
        at, offset = divmod(position, self._known.shape[1])
        return seq.block_tables[self._group][at], offset

    def _missed(self, seq: ScheduledSeq, text: Sequence[int], end: int) -> ScheduledSeq:
        """Return the tokens of `text` up to `end` that this step computes, and compute those that were missed before.

        A pass has room for the one that is missed where all drafts of the step before were right.
        """
        begin, first = seq.start, seq.start - (seq.num_drafts > 0)
        while begin and not self._known[self._place(seq, begin - 1)]:
            begin -= 1
        for part in range(begin, first, self._most):
            begin = min(part + self._most, first)
            self._compute([self._row(seq, text, part, begin)._replace(needs_sample=False)])
        return self._row(seq, text, begin, end)

    def _row(self, seq: ScheduledSeq, text: Sequence[int], begin: int, end: int) -> ScheduledSeq:
        """Return the tokens from `begin` to `end` of `text`, with a sample of the next one where it is a draft."""
        tokens, last, sampling = tuple(text[begin:end]), self._num_ids - 1, seq.sampling
        if max(tokens) > last:  # an id that no text has, beyond the smaller of two padded vocabularies
            tokens = tuple([min(token, last) for token in tokens])
        if sampling.logprobs is not None:
            sampling = replace(sampling, logprobs=None)
        table, is_sampled = (seq.block_tables[self._group],), seq.num_drafts > 0
        return ScheduledSeq(seq.request_id, tokens, begin, table, is_sampled, sampling, text, seq.num_prompt_tokens)

    def _compute(self, rows: Sequence[ScheduledSeq]) -> dict[str, SampledToken]:
        """Return the tokens that follow rows, and note that their positions are known."""
        result = self.runner.execute(StepPlan(0, (), tuple(rows)))
        self._slots[self.runner.inputs.slots[0, : sum([len(row.token_ids) for row in rows])]] = True
        return result.sampled


def _goes_on(seq: ScheduledSeq, text: list[int], sampled: SampledToken) -> bool:
    """Append a draft to `text`, and return whether to sample another one."""
    missing = len(seq.history) + seq.num_drafts - len(text)
    text += [sampled.token_id] if sampled.error is None else [NO_GUESS] * missing
    return sampled.error is None and missing > 1
