"""A step while it is being planned: what is placed so far, and how much budget is left; and its report afterwards."""

from __future__ import annotations

from collections.abc import Mapping

from ..kv_cache.manager import KVCacheManager
from ..kv_cache.state_slots import NO_STATES, StateSlots, placed
from ..types import ScheduledSeq, ServedTokens, StepPlan, StepReport, StepResult
from .sequence import Sequence


class StepDraft:
    """Sequences placed so far; none is taken out again. `budget` is in tokens."""

    __slots__ = (
        "admitted",
        "budget",
        "decode",
        "drafts",
        "lacks_blocks",
        "max_chunk",
        "max_prompts",
        "preempted",
        "prefill",
        "received",
        "received_time",
        "room",
        "states",
        "time",
    )

    def __init__(
        self,
        budget: int,
        time: float,
        max_chunk: int | None = None,
        states: StateSlots | None = None,
        max_prompts: int | None = None,
    ) -> None:
        """Begin an empty step. `max_chunk` limits the tokens of one sequence; None = the budget.

        `states` are the slots of sequences' states, None where no layer keeps one. None: any number of prompts.
        """
        self.states = states
        self.budget = self.room = budget  # a target of the step's time reduces the budget, not the room
        self.max_chunk = budget if max_chunk is None else max_chunk
        self.max_prompts = max_prompts
        self.time = time
        self.prefill: list[ScheduledSeq] = []
        self.decode: list[ScheduledSeq] = []
        self.drafts: Mapping[Sequence, tuple[int, ...]] = {}  # of sequences that decode, which have blocks for them
        self.preempted: list[str] = []
        self.lacks_blocks = False  # a sequence was preempted for the blocks of another
        self.admitted: list[str] = []
        self.received: list[tuple[str, int, int]] = []
        self.received_time: float | None = None

    def admit(self, seq: Sequence) -> None:
        """Note that a request is placed for the first time."""
        request, seq.was_placed = seq.request, True
        self.admitted.append(request.request_id)
        if request.received_time is not None:
            self.received_time = min(request.received_time, self.received_time or request.received_time)

    def place(self, seq: Sequence) -> None:
        """Compute as many of the pending tokens of `seq` as the budget allows. Its blocks cover them already."""
        token_ids, start = seq.token_ids, seq.num_scheduled_tokens
        end = min(len(token_ids), start + self.budget, start + self.max_chunk)
        if self.states is not None:  # a chunk ends where a snapshot is worth it
            end = min(end, self.states.next_boundary(start, seq.num_prompt_tokens) or end)
        most = end if self.prefill else start + min(self.room, self.max_chunk)
        end, request = seq.without_part(end, most), seq.request
        if end == start:  # a later step has room for the picture
            return
        placed = ScheduledSeq(
            request.request_id,
            tuple(token_ids[start:end]),
            start,
            seq.blocks.tables,
            end == len(token_ids),
            request.sampling,
            token_ids,
            seq.num_prompt_tokens,
            request.lora,
            media=request.media,
            encoded=seq.encoded,
            state=self._state(seq, start, end),
        )
        if not seq.was_placed:
            self.admit(seq)
        (self.decode if seq.is_decode else self.prefill).append(placed)
        seq.num_scheduled_tokens = end
        self.budget, self.room = max(0, self.budget - end + start), self.room - end + start

    def place_decode(self, seq: Sequence) -> None:
        """Compute the last token of a sequence that decodes, and its drafts; a faster `place`."""
        drafts = self.drafts.get(seq, ()) if self.drafts else ()
        token_ids, request, start = seq.token_ids, seq.request, seq.num_scheduled_tokens
        self.decode.append(
            ScheduledSeq(
                request.request_id,
                (token_ids[-1], *drafts),
                start,
                seq.blocks.tables,
                True,
                request.sampling,
                token_ids,
                seq.num_prompt_tokens,
                request.lora,
                None,
                request.media,
                seq.encoded,
                NO_STATES if self.states is None else self._row_states(seq, 1 + len(drafts)),
                len(drafts),
            )
        )
        seq.num_scheduled_tokens += 1
        self.budget, self.room = self.budget - 1 - len(drafts), self.room - 1 - len(drafts)

    def _state(self, seq: Sequence, start: int, end: int) -> tuple[int, int]:
        return placed(self.states, seq.blocks.state, (start, end), seq.num_prompt_tokens)

    def _row_states(self, seq: Sequence, count: int) -> tuple[int, ...]:
        """Return the slots before and after each of `count` tokens of a sequence that decodes."""
        assert self.states is not None
        if count == 1:
            return self._state(seq, seq.num_scheduled_tokens, seq.num_scheduled_tokens + 1)
        return self.states.place_row(seq.blocks.state, seq.num_scheduled_tokens, count, seq.num_prompt_tokens)

    @property
    def takes_prompts(self) -> bool:
        return self.budget > 0 and (self.max_prompts is None or len(self.prefill) < self.max_prompts)

    @property
    def is_empty(self) -> bool:
        return not (self.prefill or self.decode)

    def plan(self, step_id: int) -> StepPlan:
        return StepPlan(
            step_id,
            tuple(self.prefill),
            tuple(self.decode),
            tuple(self.preempted),
            tuple(self.admitted),
            self.time,
            self.received_time,
            received=tuple(self.received),
        )


def report_of(
    plan: StepPlan,
    result: StepResult,
    now: float,
    cache: KVCacheManager,
    num_open: tuple[int, int],
    served: ServedTokens | None,
) -> StepReport:
    """Report of the state after a step; `num_open` counts the running and the waiting sequences."""
    num_running, num_waiting = num_open
    return StepReport(
        step_id=plan.step_id,
        start_time=plan.time,
        time=now,
        num_running=num_running,
        num_waiting=num_waiting,
        num_prefill_tokens=sum(len(seq.token_ids) for seq in plan.prefill),
        num_decode_tokens=sum(len(seq.token_ids) for seq in plan.decode),
        admitted=plan.admitted,
        preempted=plan.preempted,
        num_free_blocks=cache.num_free_blocks,
        num_blocks=cache.config.num_blocks,
        prefix_queries=cache.prefix_queries,
        prefix_hits=cache.prefix_hits,
        step_seconds=result.seconds,
        device=result.device,
        served=served,
        tiers=cache.tier_report(),
        drafts=tuple(
            (seq.num_drafts, len(result.further.get(seq.request_id, ()))) for seq in plan.decode if seq.num_drafts
        ),
    )
