"""Observer of each request from submission to its end, for metrics and traces. Never changes an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from ...clock import Clock
from ...errors import EngineDead
from ...link.messages import Tokens
from ...types import Charge, FinishReason, Request, TokenEvent
from ..http.origin import Origin
from ..wire.usage import RequestTimes
from .device_account import KeyAccount
from .lifecycle import NO_CHARGE, RequestLife, SequenceLife
from .request_metrics import RequestMetrics

LifeObserver = Callable[[RequestLife], None]


class RequestObserver:
    """Open sequences by id; `record` observes every engine, whose reports name scheduled and preempted sequences."""

    def __init__(self, metrics: Sequence[RequestMetrics], at_end: Sequence[LifeObserver], clock: Clock) -> None:
        """Each of `at_end` is called with every request that has ended."""
        self.metrics = metrics  # of each engine
        self._at_end = at_end
        self.clock = clock
        self.open: dict[str, SequenceLife] = {}
        self._requests: dict[str, RequestLife] = {}  # open ones, by the id of their first sequence
        self.keys = KeyAccount()

    def record(self, tokens: Tokens) -> None:
        """Record which sequences were first scheduled or preempted, and the device time of each."""
        report = tokens.report
        self.keys.record(tokens)
        for request_id in report.admitted:
            if (life := self.open.get(request_id)) is not None and life.scheduled_time is None:  # not resumed
                life.scheduled_time = report.start_time
        for request_id in report.preempted:
            if (life := self.open.get(request_id)) is not None:
                life.num_preemptions += 1

    def rejected(self, limit: str) -> None:
        """Count a request that exceeded a limit of the queue and reached no engine."""
        self.metrics[0].rejected(limit)

    @property
    def open_requests(self) -> list[RequestLife]:
        """Requests that are being generated, oldest first."""
        return list(self._requests.values())

    def opened(self, key: str, life: RequestLife) -> None:
        """Record that a request is being generated; `key` is its id here."""
        self._requests[key] = life

    def ended(self, key: str, life: RequestLife) -> None:
        """Record that a request has ended."""
        del self._requests[key]
        for observe in self._at_end:
            observe(life)

    def watch(self, origin: Origin, n: int, requests: Sequence[Request]) -> RequestWatch:
        """Return a context manager for the generation of these sequences, `n` for each prompt."""
        sequences = {
            request.request_id: SequenceLife(
                len(request.prompt_token_ids), request.sampling.max_tokens, request.arrival_time
            )
            for request in requests
        }
        return RequestWatch(self, RequestLife(origin, n, requests[0].sampling, sequences))


class RequestWatch:
    """Observer of one request being generated. Leaving its `with` block ends the sequences that are still open."""

    def __init__(self, observer: RequestObserver, life: RequestLife) -> None:
        self._observer = observer
        self._metrics = observer.metrics
        self._life = life
        self._key = next(iter(life.sequences))
        self._engines: Mapping[str, int] = {}

    @property
    def times(self) -> RequestTimes:
        """Times of a request with one sequence, so far."""
        life = self._life.whole
        per_token_s, inference_s = life.s_per_output_token, life.inference_s
        return RequestTimes(
            time_to_first_token_ms=_milliseconds(life.prefill_s),
            generation_time_ms=_milliseconds(life.decode_s),
            queue_time_ms=_milliseconds(life.queue_s),
            mean_itl_ms=_milliseconds(per_token_s),
            tokens_per_second=life.num_tokens / inference_s if inference_s else None,
        )

    def placed(self, engines: Mapping[str, int]) -> None:
        """Record the engine of each sequence; sequences not in `engines` are at the first one."""
        self._engines = engines
        for request_id, engine in engines.items():
            self._life.sequences[request_id].engine = engine

    def take(self, event: TokenEvent, charge: Charge = NO_CHARGE) -> None:
        """Record one event of an open sequence, and the total charge of the sequence."""
        life = self._life.sequences[event.request_id]
        life.charge = charge
        if life.last_token_time is None:  # otherwise it was computed before
            life.engine = self._engines.get(event.request_id, life.engine)
        if event.token_id is not None:
            if life.last_token_time is None:
                self._take_first(life, event)
            else:
                self._metrics[life.engine].between_tokens.observe(event.time - life.last_token_time)
            life.last_token_time = event.time
            life.num_tokens += 1
        if event.row is not None:
            self._metrics[life.engine].prompt_computed(life)
        if event.finish_reason is not None and event.finish_reason in {"abort", "error"}:
            self.end(event.request_id, event.finish_reason)

    def end(self, request_id: str, reason: FinishReason) -> None:
        """Record that a sequence has ended, with the finish reason that the client gets."""
        life = self._life.sequences[request_id]
        life.finish_reason = reason
        self._observer.open.pop(request_id, None)
        self._metrics[life.engine].sequence_ended(life, self._observer.clock.now() - self._life.origin.arrival_time)

    def _take_first(self, life: SequenceLife, event: TokenEvent) -> None:
        now = self._observer.clock.now()
        if self._life.first_token_time is None:
            self._life.first_token_time = now
        life.first_token_time = event.time
        life.num_cached_tokens = event.num_cached_tokens
        self._metrics[life.engine].first_token(life, now - self._life.origin.arrival_time)

    def __enter__(self) -> RequestWatch:
        self._observer.open.update(self._life.sequences)
        self._observer.opened(self._key, self._life)
        self._observer.keys.open(self._life.sequences, self._life.origin.caller.use.label)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        reason: FinishReason = "error" if isinstance(error, EngineDead) else "abort"
        for request_id, life in self._life.sequences.items():
            if life.finish_reason is None:
                self.end(request_id, reason)
        self._life.end_time = self._observer.clock.now()
        self._life.note_served()
        for choices in self._life.groups:
            self._metrics[choices[0].engine].prompt_ended(choices)
        self._observer.ended(self._key, self._life)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
