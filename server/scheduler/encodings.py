"""Scheduler of an engine with an encoder: a request waits until its media are encoded, and no other does.

An *encoding* is what the encoder makes of one item: a picture, a text or a window of sound. It is named by the item's
content and the request's salt, so it is computed once for all choices of a prompt, questions about a picture, or passes
over a window. It fills whole blocks of a budget of its own and stays there while a request with the item is open;
afterwards the least recently used one makes room. A step encodes items up to a number of positions, and such steps take
turns with others. Requests get blocks in the order of fair_queue.py, and one that finds none waits for others to end.
Only a request whose items are all encoded already passes it. Pure, as the scheduler that it asks for everything else.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256

from ..config.formats import SchedulingPolicy
from ..kv_cache.hashing import HashChain
from ..kv_cache.sequence_blocks import SequenceBlocks
from ..types import Encoding, MediaItem, Request, StepPlan, StepReport, StepResult, TokenEvent
from .fair_queue import FairQueue
from .scheduler import Scheduler
from .sequence import Sequence
from .service import SERVICE_POLICIES
from .shared import SharedScheduler

Items = Mapping[bytes, MediaItem]  # of a request, by key, in its order
_NO_BLOCKS = SequenceBlocks(HashChain(1, ""), 0)


@dataclass(frozen=True, slots=True)
class EncodingLimits:
    """Budget of the encodings that are kept, and bounds of what one step and one request encode."""

    block_size: int  # positions
    num_blocks: int
    first_block: int
    max_num_tokens: int  # positions of a step; an item is never divided, so one alone may exceed it
    check: Callable[[Request], str | None]  # why the media of a request cannot be encoded

    def blocks_of(self, item: MediaItem) -> int:
        """Return the number of blocks of an item."""
        return -(-item.num_tokens // self.block_size)


class EncodingBooks:
    """Blocks of the encodings that are kept, and the number of open requests that need each."""

    def __init__(self, limits: EncodingLimits) -> None:
        self._limits = limits
        self._free = list(reversed(range(limits.first_block, limits.first_block + limits.num_blocks)))
        self.kept: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()  # blocks by key, least recently used first
        self.holders: Counter[bytes] = Counter()
        self.done: set[bytes] = set()  # keys of `kept` whose results are there
        self.num_queries = self.num_hits = 0  # items of requests since the start, and those that were kept already

    def hold(self, items: Items) -> bool:
        """Give the items of a request their blocks, dropping others that no request needs; False: too few are left."""
        new = {key: self._limits.blocks_of(item) for key, item in items.items() if key not in self.kept}
        missing, dropped = sum(new.values()) - len(self._free), list[bytes]()
        for key in (key for key in self.kept if not self.holders[key] and key not in items):
            if missing <= 0:
                break
            dropped.append(key)
            missing -= len(self.kept[key])
        if missing > 0:
            return False
        for key in dropped:
            self._free += reversed(self.kept.pop(key))
            self.done.discard(key)
        for key in items:
            if key in new:
                self.kept[key] = tuple(self._free.pop() for _ in range(new[key]))
            self.kept.move_to_end(key)
            self.holders[key] += 1
        self.num_queries += len(items)
        self.num_hits += len(items) - len(new)
        return True

    def release(self, items: Items, *, failed: bool = False) -> None:
        """Note that a request has ended; if it `failed`, its items are encoded again for the next request."""
        for key in items:
            self.holders[key] -= 1
            if not self.holders[key]:
                del self.holders[key]
        if failed:
            self.done.difference_update(items)


class EncodingScheduler:
    """Implements neuronserve.server.engine.loop.Scheduler."""

    def __init__(
        self, texts: Scheduler | SharedScheduler, limits: EncodingLimits, policy: SchedulingPolicy = "fair"
    ) -> None:
        self._texts, self._limits, self.books = texts, limits, EncodingBooks(limits)
        self._service = SERVICE_POLICIES[policy]
        self._queue = FairQueue(self._service)  # of requests without blocks for their items
        self._queued: dict[str, Sequence] = {}
        self._encoding: dict[str, Request] = {}  # with blocks, oldest first; some items are not encoded
        self._holding: dict[str, Items] = {}  # items with blocks, of each open request
        self._in_flight: set[bytes] = set()
        self._refused: list[TokenEvent] = []
        self._own_ids: deque[int] = deque()  # of each step in flight, as the scheduler that planned it counts
        self._step_id = 0
        self._was_encoding = False  # the last step was one of encodings
        self._is_behind = False  # something was left to do when it ended

    @property
    def has_work(self) -> bool:
        return self._texts.has_work or bool(self._queued or self._encoding or self._refused)

    @property
    def open_ids(self) -> tuple[str, ...]:
        return (*self._texts.open_ids, *self._queued, *self._encoding)

    def add(self, request: Request) -> None:
        """Queue a request, behind its encodings if it needs some; end it if its media cannot be encoded."""
        blocks, most = sum(map(self._limits.blocks_of, _items(request).values())), self._limits.num_blocks
        reason = f"its encodings take {blocks} blocks: there are {most}" if blocks > most else None
        if (reason := reason or self._limits.check(request)) is not None:
            self._refused.append(TokenEvent(request.request_id, None, 0, request.arrival_time, "error", error=reason))
        elif not request.media:
            self._texts.add(request)
        else:
            seq = Sequence(request, _NO_BLOCKS, self._service.order(request, 0.0))
            self._queued[request.request_id] = seq
            self._queue.add(seq)
            self._let_in([request])

    def abort(self, request_id: str, now: float) -> TokenEvent | None:
        event = self._texts.abort(request_id, now)
        if request_id in self._queued:
            self._queue.remove(self._queued.pop(request_id))
            event = TokenEvent(request_id, None, 0, now, "abort")
        elif self._encoding.pop(request_id, None) is not None:
            event = TokenEvent(request_id, None, 0, now, "abort")
        if event is not None:
            self._end(event)
        return event

    def reset_prefix_cache(self) -> None:
        self._texts.reset_prefix_cache()

    def schedule(self, now: float) -> StepPlan:
        """Return a step of encodings if requests wait for some, or else a step of the others; they take turns."""
        self._queue.at(now)
        encodings = () if self._was_encoding and self._texts.has_work else tuple(self._next_encodings())
        self._was_encoding, self._step_id = bool(encodings), self._step_id + 1
        plan = self._texts.schedule(now) if not encodings else StepPlan(0, (), (), time=now, encodings=encodings)
        self._own_ids.append(plan.step_id)
        return plan._replace(step_id=self._step_id, follows=plan.follows or self._is_behind)

    def apply(self, plan: StepPlan, result: StepResult, now: float) -> list[TokenEvent]:
        own_id, events, self._refused = self._own_ids.popleft(), self._refused, []
        for each in plan.encodings:
            self._in_flight.remove(each.key)
            self.books.release({each.key: each.item})
            self.books.done.add(each.key)
        if plan.encodings:
            self._let_in([*self._encoding.values(), *(seq.request for seq in self._queued.values())])
        else:
            events += self._texts.apply(plan._replace(step_id=own_id), result._replace(step_id=own_id), now)
            for event in events:
                if event.finish_reason is not None:
                    self._end(event)
        self._is_behind = self.has_work
        return events

    def report(self, plan: StepPlan, result: StepResult, now: float) -> StepReport:
        report = self._texts.report(plan, result, now)
        return report._replace(
            num_waiting=report.num_waiting + len(self._queued) + len(self._encoding),
            num_encoder_tokens=plan.num_encoder_tokens,
            encoding_queries=self.books.num_queries,
            encoding_hits=self.books.num_hits,
        )

    def _next_encodings(self) -> Iterator[Encoding]:
        """Yield as many of the missing encodings as fit in a step, one at least."""
        left = self._limits.max_num_tokens
        for request, key, item in self._missing():
            if item.num_tokens > left and left < self._limits.max_num_tokens:
                return
            left -= item.num_tokens
            self._in_flight.add(key)
            self.books.holders[key] += 1  # until the step is applied, whatever becomes of the request
            yield Encoding(key, item, self.books.kept[key], request.request_id)
            if left <= 0:
                return

    def _missing(self) -> Iterator[tuple[Request, bytes, MediaItem]]:
        """Yield the items to encode, those of requests that have blocks first; then give blocks to the next request."""
        for request in [*self._encoding.values()]:
            yield from self._items_of(request)
        while self._queue:
            request = self._queue.first.request
            if not self._hold(request):
                return
            self._encoding[request.request_id] = request
            yield from self._items_of(request)

    def _items_of(self, request: Request) -> Iterator[tuple[Request, bytes, MediaItem]]:
        for key, item in self._holding[request.request_id].items():
            if key not in self.books.done and key not in self._in_flight:
                yield request, key, item

    def _hold(self, request: Request) -> bool:
        """Give a queued request blocks for its items, and take it from the queue; False: too few are left."""
        items = _items(request)
        if not self.books.hold(items):
            return False
        seq = self._queued.pop(request.request_id)
        self._queue.remove(seq)
        self._queue.serve(seq, sum(item.num_tokens for item in items.values()))
        self._holding[request.request_id] = items
        return True

    def _let_in(self, requests: Iterable[Request]) -> None:
        """Hand over those of waiting `requests` whose media are all encoded."""
        for request in requests:
            request_id, items = request.request_id, _items(request)
            if items.keys() <= self.books.done and (request_id in self._encoding or self._hold(request)):
                self._encoding.pop(request_id, None)
                keys = (_key(request, item) for item in request.media)
                self._texts.add(request, tuple(block for key in keys for block in self.books.kept[key]))

    def _end(self, event: TokenEvent) -> None:
        items = self._holding.pop(event.request_id, None)
        if items is not None:
            self.books.release(items, failed=event.finish_reason == "error")


def _items(request: Request) -> Items:
    return {_key(request, item): item for item in request.media}


def _key(request: Request, item: MediaItem) -> bytes:
    salt = request.cache_salt.encode("utf-8", "surrogatepass")
    return sha256(salt + item.digest).digest() if salt else item.digest
