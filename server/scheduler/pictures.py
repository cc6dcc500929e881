"""Scheduler of an engine that reads pictures: a request waits until its pictures are encoded, and no other does.

A step encodes one picture; such steps and the others take turns. Vectors are kept by the picture's content, within a
bound of bytes: those of open requests stay, because a preempted request needs them again, and the least recently used
of the others make room. A request whose pictures find no room waits for others to end. Pure, as the scheduler that it
asks for everything else.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..types import MediaItem, Request, ScheduledSeq, StepPlan, StepReport, StepResult, TokenEvent

Check = Callable[[Request], str | None]  # why the pictures of a request cannot be encoded


class Texts(Protocol):
    """Scheduler of requests whose pictures are ready."""

    @property
    def has_work(self) -> bool: ...
    @property
    def open_ids(self) -> tuple[str, ...]: ...
    def add(self, request: Request) -> None: ...
    def abort(self, request_id: str, now: float) -> TokenEvent | None: ...
    def reset_prefix_cache(self) -> None: ...
    def schedule(self, now: float) -> StepPlan: ...
    def apply(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenEvent]: ...
    def report(self, plan: StepPlan, result: StepResult, now: float) -> StepReport: ...


@dataclass(frozen=True, slots=True)
class PictureLimits:
    """Bounds of the vectors that are kept."""

    vector_bytes: int  # of one placeholder
    most_bytes: int
    check: Check


class VectorBooks:
    """Vectors that are kept, by digest, and the number of open requests that need each."""

    def __init__(self, limits: PictureLimits) -> None:
        self._limits = limits
        self.kept: OrderedDict[bytes, int] = OrderedDict()  # bytes of each picture, least recently used first
        self.holders: Counter[bytes] = Counter()
        self.num_bytes = 0

    def hold(self, media: tuple[MediaItem, ...]) -> list[bytes] | None:
        """Keep the vectors of a request's pictures; return what is dropped for them, None when they find no room.

        One request finds room always, so that no bound can stop the engine.
        """
        new = {each.digest: each.num_tokens * self._limits.vector_bytes for each in media}
        free = [digest for digest in self.kept if not self.holders[digest] and digest not in new]
        missing = sum(size for digest, size in new.items() if digest not in self.kept)
        excess, dropped = self.num_bytes + missing - self._limits.most_bytes, list[bytes]()
        for digest in free:
            if excess <= 0:
                break
            dropped.append(digest)
            excess -= self.kept[digest]
        if excess > 0 and self.holders.total():
            return None
        for digest in dropped:
            self.num_bytes -= self.kept.pop(digest)
        self.num_bytes += missing
        for digest, size in new.items():
            self.kept[digest] = size
            self.kept.move_to_end(digest)
            self.holders[digest] += 1
        return dropped

    def release(self, media: tuple[MediaItem, ...]) -> None:
        """Note that a request has ended; its vectors stay until others need their room."""
        for digest in {each.digest for each in media}:
            self.holders[digest] -= 1
            if not self.holders[digest]:
                del self.holders[digest]


class PictureScheduler:
    """Implements neuronserve.server.engine.loop.Scheduler."""

    def __init__(self, texts: Texts, limits: PictureLimits) -> None:
        self._texts, self._check, self._books = texts, limits.check, VectorBooks(limits)
        self._waiting: dict[str, Request] = {}  # for vectors, oldest first
        self._holding: dict[str, Request] = {}  # open requests with room for their vectors
        self._encoded: set[bytes] = set()
        self._in_flight: set[bytes] = set()
        self._dropped: list[bytes] = []  # to be forgotten by the runner with the next picture
        self._refused: list[TokenEvent] = []
        self._own_ids: deque[int] = deque()  # of each step in flight, as the scheduler that planned it counts
        self._step_id, self._was_picture = 0, False
        self.num_read = self.num_encoded = 0  # pictures of requests since the start, and how many were encoded for them

    @property
    def has_work(self) -> bool:
        return self._texts.has_work or bool(self._waiting) or bool(self._refused)

    @property
    def open_ids(self) -> tuple[str, ...]:
        return (*self._texts.open_ids, *self._waiting)

    def add(self, request: Request) -> None:
        """Queue a request, behind its pictures if it has any; end it if these do not fit its prompt or the encoder."""
        if not request.media:
            self._texts.add(request)
        elif (reason := self._check(request)) is not None:
            self._refused.append(TokenEvent(request.request_id, None, 0, request.arrival_time, "error", error=reason))
        else:
            self._waiting[request.request_id] = request

    def abort(self, request_id: str, now: float) -> TokenEvent | None:
        if self._waiting.pop(request_id, None) is not None:
            self._end(request_id)
            return TokenEvent(request_id, None, 0, now, "abort")
        event = self._texts.abort(request_id, now)
        if event is not None:
            self._end(request_id)
        return event

    def reset_prefix_cache(self) -> None:
        self._texts.reset_prefix_cache()

    def schedule(self, now: float) -> StepPlan:
        """Return a step that encodes the next picture, or else a step of the other requests; they take turns."""
        picture = None if self._was_picture and self._texts.has_work else self._next_picture()
        self._was_picture, self._step_id = picture is not None, self._step_id + 1
        if picture is None:
            plan = self._texts.schedule(now)
            self._own_ids.append(plan.step_id)
            return plan._replace(step_id=self._step_id)
        self._own_ids.append(0)
        request, item = picture
        self._in_flight.add(item.digest)
        ids = request.prompt_token_ids[item.offset : item.offset + 1] * item.num_tokens
        seq = ScheduledSeq(request.request_id, ids, 0, (), False, request.sampling, ids, len(ids), media=(item,))
        dropped, self._dropped = tuple(self._dropped), []
        return StepPlan(self._step_id, (seq,), (), time=now, is_picture=True, dropped=dropped, follows=True)

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenEvent]:
        own_id, events, self._refused = self._own_ids.popleft(), self._refused, []
        if plan.is_picture:
            self.num_encoded += 1
            self._encoded.add(plan.prefill[0].media[0].digest)
            self._in_flight.discard(plan.prefill[0].media[0].digest)
            self._let_in()
            return events
        events += self._texts.apply(plan._replace(step_id=own_id), result._replace(step_id=own_id), now)
        for event in events:
            if event.finish_reason is not None:
                self._end(event.request_id)
        return events

    def report(self, plan: StepPlan, result: StepResult, now: float) -> StepReport:
        report = self._texts.report(plan, result, now)
        count = plan.num_tokens if plan.is_picture else 0
        return report._replace(
            num_waiting=report.num_waiting + len(self._waiting),
            num_prefill_tokens=report.num_prefill_tokens - count,
            num_picture_tokens=count,
            num_pictures_read=self.num_read,
            num_pictures_encoded=self.num_encoded,
        )

    def _next_picture(self) -> tuple[Request, MediaItem] | None:
        """Return the first picture without vectors of the waiting requests that have room for theirs."""
        for request in list(self._waiting.values()):
            if request.request_id not in self._holding:
                dropped = self._books.hold(request.media)
                if dropped is None:
                    break  # none overtakes
                self._holding[request.request_id] = request
                self._encoded.difference_update(dropped)
                self._dropped += dropped
        self._let_in()
        for request in self._waiting.values():
            if request.request_id in self._holding:
                for item in request.media:
                    if item.digest not in self._encoded and item.digest not in self._in_flight:
                        return request, item
        return None

    def _let_in(self) -> None:
        """Hand over the requests whose pictures are all encoded."""
        for request_id, request in list(self._waiting.items()):
            if request_id in self._holding and all(each.digest in self._encoded for each in request.media):
                del self._waiting[request_id]
                self.num_read += len(request.media)
                self._texts.add(request)

    def _end(self, request_id: str) -> None:
        request = self._holding.pop(request_id, None)
        if request is not None:
            self._books.release(request.media)
