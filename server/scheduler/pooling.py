"""Choice of the texts that the next step encodes. Pure decisions: no clock, no randomness, no IO.

A text is computed whole, in one step, and keeps nothing: there are no blocks, no chunks and no preemption. Texts are
served by priority, then by fair queuing over HTTP requests, so that one text does not wait for the two thousand of an
earlier request: a text's tag is the virtual time at which it would be done if all waiting requests shared the engine
evenly, token by token. (Start-time fair queuing, Goyal, Vin and Cheng 1996, with finish tags.)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from operator import attrgetter

from ..config import PoolingLimits
from ..types import Request, ScheduledSeq, StepPlan, StepReport, StepResult, TokenEvent

NOT_FINITE = "the states of this text are not finite"


class _Text:
    """A waiting text; `order` is total and never changes."""

    __slots__ = ("group", "order", "request")

    def __init__(self, request: Request, group: str, tag: int, number: int) -> None:
        self.request, self.group = request, group
        self.order = (request.priority, tag, number)

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_token_ids)


_order = attrgetter("order")


class PoolingScheduler:
    """Fills steps of whole texts."""

    def __init__(self, limits: PoolingLimits) -> None:
        if not 1 <= limits.max_length <= limits.max_num_tokens:
            raise ValueError(f"a step of {limits.max_num_tokens} tokens has no room for a text of {limits.max_length}")
        self._limits = limits
        self._waiting: list[_Text] = []
        self._open: dict[str, _Text] = {}
        self._tags: dict[str, int] = {}  # of the last text of each group that has waiting texts
        self._sizes: Counter[str] = Counter()  # waiting texts of each group
        self._virtual_time = 0  # tag of the text that was placed last
        self._num_added = self._step_id = self._applied_id = 0
        self._is_behind = False  # something waited when the last step ended

    @property
    def has_work(self) -> bool:
        return bool(self._open)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def open_ids(self) -> tuple[str, ...]:
        """Ids of all open requests, oldest `add` first."""
        return tuple(self._open)

    def add(self, request: Request) -> None:
        """Queue `request`. Raises ValueError for the id of an open request, and for a text that fits no step."""
        assert request.pooling is not None
        num_tokens, request_id = len(request.prompt_token_ids), request.request_id
        if not 1 <= num_tokens <= self._limits.max_length:
            raise ValueError(f"request {request_id} has {num_tokens} tokens: 1 to {self._limits.max_length} fit")
        if request_id in self._open:
            raise ValueError(f"request {request_id} is open already")
        group = request.pooling.group or request_id
        tag = max(self._virtual_time, self._tags.get(group, 0)) + num_tokens
        self._tags[group] = tag
        self._sizes[group] += 1
        self._num_added += 1
        self._open[request_id] = text = _Text(request, group, tag, self._num_added)
        insort(self._waiting, text, key=_order)

    def abort(self, request_id: str, now: float) -> TokenEvent | None:
        """End a request; return None when it is unknown or has ended."""
        text = self._open.pop(request_id, None)
        if text is None:
            return None
        at = bisect_left(self._waiting, text.order, key=_order)
        if at < len(self._waiting) and self._waiting[at] is text:  # else it is in a step in flight
            del self._waiting[at]
            self._leave(text)
        return TokenEvent(request_id, None, 0, now, "abort")

    def reset_prefix_cache(self) -> None:
        """Do nothing: texts are not cached."""

    def schedule(self, now: float) -> StepPlan:
        """Return the next step: as many of the first texts as it has room for. None overtakes another."""
        limits, num_tokens, placed = self._limits, 0, list[_Text]()
        for text in self._waiting[: limits.max_num_texts]:
            num_tokens += text.num_tokens
            if num_tokens > limits.max_num_tokens:
                break
            placed.append(text)
        del self._waiting[: len(placed)]
        for text in placed:
            self._virtual_time = max(self._virtual_time, text.order[1])
            self._leave(text)
        requests = [text.request for text in placed]
        self._step_id += 1
        return StepPlan(
            self._step_id,
            prefill=tuple(map(_scheduled, requests)),
            decode=(),
            admitted=tuple(request.request_id for request in requests),
            time=now,
            received_time=min((r.received_time for r in requests if r.received_time is not None), default=None),
            is_pooled=True,
            follows=self._is_behind,
        )

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenEvent]:
        """End every open text of the oldest step in flight, with its row."""
        self._applied_id += 1
        assert plan.step_id == result.step_id == self._applied_id, "plans are applied one by one, in order"
        self._is_behind = bool(self._waiting)
        ids = [seq.request_id for seq in plan.prefill if seq.request_id in self._open]
        return [self._end(request_id, result.rows.get(request_id), now) for request_id in ids]

    def report(self, plan: StepPlan, result: StepResult, now: float) -> StepReport:
        """Report of the state after a step. No text counts as running."""
        return StepReport(
            step_id=plan.step_id,
            start_time=plan.time,
            time=now,
            num_running=0,
            num_waiting=len(self._waiting),
            num_prefill_tokens=plan.num_tokens,
            num_decode_tokens=0,
            admitted=plan.admitted,
            preempted=(),
            num_free_blocks=0,
            num_blocks=0,
            prefix_queries=0,
            prefix_hits=0,
            step_seconds=result.seconds,
            device=result.device,
        )

    def _leave(self, text: _Text) -> None:
        """Note that `text` does not wait any more; a group without texts is forgotten."""
        self._sizes[text.group] -= 1
        if not self._sizes[text.group]:
            del self._sizes[text.group], self._tags[text.group]

    def _end(self, request_id: str, row: bytes | None, now: float) -> TokenEvent:
        del self._open[request_id]
        if row is None:
            return TokenEvent(request_id, None, 0, now, "error", error=NOT_FINITE)
        return TokenEvent(request_id, None, 0, now, "stop", row=row)


def _scheduled(request: Request) -> ScheduledSeq:
    """Return all of a text as one prefill. The runner chooses where its keys lie during the step."""
    ids = request.prompt_token_ids
    return ScheduledSeq(
        request.request_id, ids, 0, (), False, request.sampling, ids, len(ids), request.lora, request.pooling
    )
