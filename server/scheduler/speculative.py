"""A scheduler whose steps verify drafts: one token of a sequence that decodes, and guesses of the tokens after it.

The runner returns the sampled tokens up to the first that differs from its draft. Each is applied as if it had had a
step of its own, so blocks are named by accepted tokens alone, and a sequence ends where it would end without drafts.
Keys and values of wrong drafts are behind the computed tokens and are overwritten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..config import SchedulerConfig
from ..kv_cache.manager import KVCacheManager
from ..types import SampledToken, ScheduledSeq, StepPlan, StepResult, TokenEvent
from .drafts.model_speculator import ModelSpeculator
from .drafts.speculator import NO_PASSES, Speculator
from .scheduler import Scheduler
from .sequence import Sequence, decoding
from .step import StepDraft

_SEEN_STEPS = 8  # steps without drafts of which one is looked at for its cost


def scheduler_of(config: SchedulerConfig, cache: KVCacheManager) -> Scheduler:
    """Return the scheduler that `config` asks for."""
    return Scheduler(config, cache) if config.speculation is None else SpeculativeScheduler(config, cache)


def passes_of(plan: StepPlan, draft_s: float) -> tuple[int, int, float]:
    """Return the sequences that a draft model has drafted for in a step, its passes, and `draft_s`, their time."""
    counts = [seq.num_drafts for seq in plan.decode if seq.num_drafts] if draft_s else []
    return (len(counts), max(counts), draft_s) if counts else NO_PASSES


class SpeculativeScheduler(Scheduler):
    """A scheduler with drafts. A sequence whose drafts are being verified is in flight, so it is placed in no step."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager) -> None:
        super().__init__(config, cache)
        assert config.speculation is not None
        made = ModelSpeculator if config.speculation.method == "draft_model" else Speculator
        self._speculator: ModelSpeculator | Speculator = made(config.speculation, config)
        self._drafted: dict[int, int] = {}  # rows of each step in flight with drafts
        self._seen: tuple[int, int | None, float] | None = None  # rows, tokens and begin of a step to be learnt from
        self._passes = NO_PASSES  # of a draft model in that step
        self._has_drafts = False  # of the step that is applied
        self._further: Mapping[str, tuple[SampledToken, ...]] = {}  # of the step that is applied

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenEvent]:
        num_rows = self._drafted.pop(plan.step_id, 0)
        self._has_drafts, self._further = num_rows > 0, result.further
        events = super().apply(plan, result, now)
        self._seen = None
        if plan.prefill or plan.admitted:
            self._speculator.wakes = 0
        elif self._open and (num_rows or plan.step_id % _SEEN_STEPS == 0):
            self._seen = num_rows or len(plan.decode), len(events) if num_rows else None, plan.time
            self._passes = passes_of(plan, result.draft_s)
        return events

    def _place_decodes(self, step: StepDraft) -> None:
        if self._seen is not None:  # up to here, so that all of the host's work for each row counts too
            self._speculator.observe(*self._seen[:2], step.time - self._seen[2], self._passes)
        step_id = self._step_id + 1
        if self._speculator.wakes <= step_id:
            seqs = decoding(self._running, self._config.num_batches)
            # Of the budget, each running sequence keeps a token.
            if found := self._speculator.drafts(seqs, step.budget - len(self._running), step_id):
                step.drafts = {seq: self._fitting(seq, drafts) for seq, drafts in found.items()}
        super()._place_decodes(step)
        if step.drafts:
            self._drafted[step_id] = sum([len(seq.token_ids) for seq in step.decode])

    def _fitting(self, seq: Sequence, drafts: tuple[int, ...]) -> tuple[int, ...]:
        """Return the drafts that have blocks. They take free ones, if one is left for each running sequence."""
        num_known, start = len(seq.token_ids), seq.num_scheduled_tokens
        if self._cache.states is not None:  # a row does not go beyond a state that is worth a snapshot
            end = self._cache.states.next_boundary(start, seq.num_prompt_tokens)
            drafts = drafts if end is None else drafts[: end - start - 1]
        if self._cache.allocate(seq.blocks, num_known + len(drafts), num_growing=len(self._running)):
            return drafts
        return drafts[: max(0, seq.blocks.num_blocks * self._cache.config.block_size - num_known)]

    def _apply(
        self, placed: Collection[ScheduledSeq], sampled: Mapping[str, SampledToken], now: float
    ) -> list[TokenEvent]:
        if not self._has_drafts:
            return super()._apply(placed, sampled, now)
        firsts: list[ScheduledSeq] = []
        for each in placed:
            if each.num_drafts and (seq := self._open.get(each.request_id)) is not None:
                num_accepted, (verified, accepted) = len(self._further.get(each.request_id, ())), seq.drafts
                seq.drafts = verified + each.num_drafts, accepted + num_accepted
                self._speculator.count(seq, each.num_drafts, num_accepted)
                if self._cache.states is not None:
                    self._cache.states.accept(seq.blocks.state, each.start, 1 + num_accepted)
                firsts.append(each._replace(token_ids=each.token_ids[: len(each.token_ids) - each.num_drafts]))
            else:
                firsts.append(each)
        events = super()._apply(firsts, sampled, now)
        for i in range(max(map(len, self._further.values()), default=0)):
            # An accepted draft may have been the last token of its sequence.
            tokens = {id_: tokens[i] for id_, tokens in self._further.items() if i < len(tokens) and id_ in self._open}
            for request_id in tokens:
                self._open[request_id].num_scheduled_tokens += 1
            events += super()._apply([each for each in firsts if each.request_id in tokens], tokens, now)
        return events

    def _close(self, seq: Sequence) -> None:
        super()._close(seq)
        self._speculator.close(seq)
