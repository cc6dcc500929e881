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
from .drafts.speculator import NO_DRAFTS, Speculator
from .scheduler import Scheduler
from .sequence import Sequence
from .step import StepDraft

_SEEN_STEPS = 4  # steps without drafts of which one is looked at for its cost


def scheduler_of(config: SchedulerConfig, cache: KVCacheManager) -> Scheduler:
    """Return the scheduler that `config` asks for."""
    return Scheduler(config, cache) if config.speculation is None else SpeculativeScheduler(config, cache)


class SpeculativeScheduler(Scheduler):
    """A scheduler with drafts. A sequence whose drafts are being verified is in flight, so it is placed in no step."""

    def __init__(self, config: SchedulerConfig, cache: KVCacheManager) -> None:
        super().__init__(config, cache)
        assert config.speculation is not None
        made = ModelSpeculator if config.speculation.method == "draft_model" else Speculator
        self._speculator: ModelSpeculator | Speculator = made(config.speculation, config)
        self._has_drafts = False  # of the step that is applied
        self._further: Mapping[str, tuple[SampledToken, ...]] = {}  # of the step that is applied

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenEvent]:
        num_rows = sum([len(seq.token_ids) for seq in plan.decode])
        self._has_drafts, self._further = num_rows > len(plan.decode), result.further
        if self._has_drafts or plan.step_id % _SEEN_STEPS == 0:
            # Of real time, so that the work of the scheduler for each row counts too.
            self._speculator.observe(plan, num_rows, max(result.elapsed_s, now - plan.time), result.draft_s)
        return super().apply(plan, result, now)

    def _place_decodes(self, step: StepDraft) -> None:
        seqs = [seq for seq in self._running if seq.is_decode]
        # Of the budget, each running sequence keeps a token.
        if found := self._speculator.drafts(seqs, step.budget - len(self._running)):
            step.drafts = {seq: self._fitting(seq, drafts) for seq, drafts in found.items()}
        super()._place_decodes(step)

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
        events: list[TokenEvent] = []
        for each in placed:
            further = self._further.get(each.request_id, ())
            if each.num_drafts and (seq := self._open.get(each.request_id)) is not None:
                self._speculator.count(seq, each.num_drafts, len(further))
                if self._cache.states is not None:
                    self._cache.states.accept(seq.blocks.state, each.start, 1 + len(further))
            first = each._replace(token_ids=each.token_ids[: len(each.token_ids) - each.num_drafts])
            events += super()._apply((first,), sampled, now)
            for token in further:
                if each.request_id in self._open:  # else an accepted draft was its last token
                    self._open[each.request_id].num_scheduled_tokens += 1
                    events += super()._apply((first,), {each.request_id: token}, now)
        return events

    def _accept(self, seq: Sequence, sampled: SampledToken, now: float) -> TokenEvent:
        counts = self._speculator.add(seq, sampled.token_id)
        event = super()._accept(seq, sampled, now)
        return event if counts is NO_DRAFTS else event._replace(drafts=counts)

    def _close(self, seq: Sequence) -> None:
        super()._close(seq)
        self._speculator.close(seq)
