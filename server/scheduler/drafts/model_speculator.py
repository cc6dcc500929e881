"""Numbers of drafts that the runner's draft model makes, where speculation is by a second model.

A plan has a place for each draft, and the runner fills it. A draft costs a row of the step that verifies it, and the
drafts of one depth cost a pass of the draft model over the sequences that go so deep. Both times are learnt apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...config import SchedulerConfig
from ...config.speculation import SpeculationConfig
from ..sequence import Sequence as OpenSequence
from .depth import Record, StepCosts
from .speculator import NO_PASSES

PLACE = -1  # of a draft, in the tokens of a plan; no token


class ModelSpeculator:
    """Decides on numbers of drafts. Pure: reads no clock, and the tokens of a request never depend on it."""

    def __init__(self, config: SpeculationConfig, limits: SchedulerConfig) -> None:
        self._rate, self._max_model_len = config.acceptance_rate, limits.max_model_len
        self._most = min(config.num_speculative_tokens, limits.max_chunk - 1)  # of one sequence
        self._most_drafts = config.most_drafts(limits.max_num_seqs)  # of a step
        self._verifying, self._drafting = StepCosts(), StepCosts()  # by rows, and by sequences of a pass
        self._of: dict[OpenSequence, Record] = {}  # of open sequences that have decoded
        self.wakes = 0  # step before which there are no drafts

    def drafts(self, seqs: Sequence[OpenSequence], budget: int, step_id: int) -> dict[OpenSequence, tuple[int, ...]]:
        """Return places for the drafts of `seqs`, which all decode in the next step, at most `budget` in all."""
        del step_id  # no step is without a look
        chances: list[list[float]] = []
        for seq in seqs:
            if (record := self._of.get(seq)) is None:
                record = self._of[seq] = Record(self._rate)
            record.forget()
            room = min(seq.most_tokens, self._max_model_len) - len(seq.token_ids) - 1
            chances.append(list(record.chances(min(self._most, max(0, room)))))
        depths = common_depths(chances, min(budget, self._most_drafts), self._verifying, self._drafting)
        return {seq: (PLACE,) * depth for seq, depth in zip(seqs, depths, strict=True) if depth}

    def observe(
        self, num_rows: int, num_tokens: int | None, seconds: float, passes: tuple[int, int, float] = NO_PASSES
    ) -> None:
        """Learn what a step of `num_rows` rows cost, and the draft model's passes in it."""
        del num_tokens
        num_seqs, depth, draft_s = passes
        self._verifying.observe(num_rows, seconds - draft_s)
        if depth:
            self._drafting.observe(num_seqs, draft_s / depth)

    def count(self, seq: OpenSequence, num_verified: int, num_accepted: int) -> None:
        """Learn from drafts that a step verified; those after the first wrong one say nothing."""
        record = self._of[seq]
        for _ in range(num_accepted):
            record.add(is_right=True)
        if num_accepted < num_verified:
            record.add(is_right=False)

    def close(self, seq: OpenSequence) -> None:
        """Forget a sequence that has ended."""
        self._of.pop(seq, None)


def common_depths(
    chances: Sequence[Sequence[float]], most: int, verifying: StepCosts, drafting: StepCosts
) -> list[int]:
    """Return how many drafts to make for each sequence, given the chances that its first, first two ... are right.

    The one depth that all share, as far as their chances are worth a row, has the most expected tokens a second. At
    most `most` drafts are made.
    """
    rows = num_rows = len(chances)
    if not rows:
        return []
    least, tokens, drafts_s = verifying.least_chance(rows), float(rows), 0.0
    best, chosen = tokens / (verifying.seconds(rows) or verifying.of(rows)), 0
    for depth in range(max(map(len, chances))):
        deep = [each[depth] for each in chances if len(each) > depth and each[depth] >= least]
        rows += len(deep)
        if not deep or rows - num_rows > most:
            break
        tokens, drafts_s = tokens + sum(deep), drafts_s + drafting.seconds(len(deep))
        step_s = drafts_s + (verifying.seconds(rows) or verifying.of(rows))
        if tokens / step_s > best:
            best, chosen = tokens / step_s, depth + 1
    return [sum(chance >= least for chance in each[:chosen]) for each in chances]
