"""Which texts are encoded in the next step. Pure decisions, as scheduler.py's: no clock, no chance, no IO.

A text is computed whole, in one step, and keeps nothing: there are no blocks, no chunks and no preemption. Texts are
served by priority, then by fair queuing over HTTP requests: a text's tag is the virtual time at which its request would
have had it all, if those that wait shared the engine evenly token by token, so that one text does not wait for the two
thousand of a request before it. (Start-time fair queuing, Goyal, Vin and Cheng 1996, with finish tags.)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from operator import attrgetter

from neuronserve.server.config import PoolingLimits
from neuronserve.server.types import Request, ScheduledSeq, StepPlan, StepReport, StepResult, TokenEvent

NOT_FINITE = "the states of this text are not finite"


class _Text:
    """A text that waits; `order` is total and never changes."""

    __slots__ = ("group", "order", "request")

    def __init__(self, request: Request, group: str, tag: int, number: int) -> None:
        self.request, self.group = request, group
        self.order = (request.priority, tag, number)

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_token_ids)


_order = attrgetter("order")


class PoolingScheduler:
    """Fills steps of whole texts. `add` and `abort` belong between `apply` and `schedule`."""

    def __init__(self, limits: PoolingLimits) -> None:
        if not 1 <= limits.max_length <= limits.max_num_tokens:
            raise ValueError(f"a step of {limits.max_num_tokens} tokens has no room for a text of {limits.max_length}")
        self._limits = limits
        self._waiting: list[_Text] = []
        self._open: dict[str, _Text] = {}
        self._tags: dict[str, int] = {}  # of the last text of each group with texts that wait
        self._sizes: Counter[str] = Counter()  # texts of each group that wait
        self._virtual_time = 0  # tag of the text that was placed last
        self._num_added = self._step_id = 0
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
        """Let `request` wait for its turn.

        Raises ValueError for the id of an open request, and for a text that no step has room for.
        """
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
        """End a request wherever it is; None when it is unknown or has ended."""
        text = self._open.pop(request_id, None)
        if text is None:
            return None
        del self._waiting[bisect_left(self._waiting, text.order, key=_order)]
        self._leave(text)
        return TokenEvent(request_id, None, 0, now, "abort")

    def reset_prefix_cache(self) -> None:
        """Nothing is cached."""

    def schedule(self, now: float) -> StepPlan:
        """The next step: those first in order, as many as it has room for. Nobody overtakes."""
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
        """End every text of the step, with its row."""
        assert plan.step_id == result.step_id == self._step_id, "plans are applied one by one, in order"
        self._is_behind = bool(self._waiting)
        return [self._end(seq.request_id, result.rows.get(seq.request_id), now) for seq in plan.prefill]

    def report(self, plan: StepPlan, result: StepResult, now: float) -> StepReport:
        """The state after a step. No text runs between steps."""
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
        """It waits no longer; a group without texts is forgotten."""
        self._sizes[text.group] -= 1
        if not self._sizes[text.group]:
            del self._sizes[text.group], self._tags[text.group]

    def _end(self, request_id: str, row: bytes | None, now: float) -> TokenEvent:
        del self._open[request_id]
        if row is None:
            return TokenEvent(request_id, None, 0, now, "error", error=NOT_FINITE)
        return TokenEvent(request_id, None, 0, now, "stop", row=row)


def _scheduled(request: Request) -> ScheduledSeq:
    """All of a text; where its keys lie during the step is the runner's to say."""
    ids = request.prompt_token_ids
    return ScheduledSeq(
        request.request_id, ids, 0, (), False, request.sampling, ids, len(ids), request.lora, request.pooling
    )
