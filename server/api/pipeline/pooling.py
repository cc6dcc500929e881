"""The texts of one HTTP request, from tokens to rows, for every endpoint that encodes.

A request has at most `MAX_OPEN` texts open at a time, so that a long list neither fills the queue nor is refused for
its length. When the collection ends, for any reason, texts that are still open are aborted in the engine.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...errors import GenerationFailed, InvalidRequest, Unavailable
from ...link.messages import PoolingFacts
from ...types import Charge, PoolingParams, Request, SamplingParams, TokenEvent, TokenizedText
from ..http.origin import Origin
from ..service import Service
from ..wire.usage import PoolingUsage
from .generation import device_usage
from .room import require_room
from .rows import Float32, row_of
from .validate import paths_of

MAX_OPEN = 256
NO_SAMPLING = SamplingParams(max_tokens=0)
AS_IT_IS = PoolingParams()
UNSUPPORTED = "unsupported_endpoint"


def require_pooling(service: Service, name: str | None) -> tuple[str, PoolingFacts]:
    """Return the model name for the answer, and facts of its rows. Raises RequestError if the model encodes nothing."""
    info = service.model.info
    found = service.require_name(name)
    if info.pooling is None or found not in service.config.model_names:
        what = "The model" if info.pooling is None else f"The adapter {found[:200]!r}"
        raise InvalidRequest(f"{what} encodes no texts here: ask {paths_of(info)}.", "model", UNSUPPORTED)
    return found, info.pooling


def require_kind(service: Service, is_classifier: bool) -> None:
    """Raise InvalidRequest unless rows are of the given kind: scores of classes, or embeddings."""
    info = service.model.info
    if info.pooling is not None and bool(info.pooling.labels) != is_classifier:
        what = "embeds and has no classes" if is_classifier else "classifies and makes no embeddings"
        raise InvalidRequest(f"{info.facts.architecture} {what}: ask {paths_of(info)}.", "model", UNSUPPORTED)


@dataclass(frozen=True, slots=True)
class PoolingWork:
    """Texts to encode, the kind of row to make of each, and the priority."""

    texts: Sequence[TokenizedText]
    params: PoolingParams = AS_IT_IS
    priority: int | None = None


class Pooling:
    """The texts of one request, checked and ready; `rows` encodes them once."""

    def __init__(self, service: Service, origin: Origin, work: PoolingWork) -> None:
        require_room(service, min(MAX_OPEN, len(work.texts)))
        service.engine.check_rank(origin.data_parallel_rank)
        self._service, self._origin = service, origin
        self._charge = Charge()
        prefix = f"{origin.request_id}-{uuid.uuid4().hex[:12]}"
        now = service.clock.now()
        self._requests = [
            Request(
                request_id=f"{prefix}-{i}",
                prompt_token_ids=text.token_ids,
                sampling=NO_SAMPLING,
                arrival_time=now,
                priority=origin.caller.priority(work.priority),
                received_time=origin.arrival_time,
                pooling=replace(work.params, token_types=text.token_types, group=prefix),
            )
            for i, text in enumerate(work.texts)
        ]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [len(request.prompt_token_ids) for request in self._requests]

    async def rows(self) -> list[Float32]:
        """Encode the texts; return the row of each, in their order."""
        engine, rank = self._service.engine, self._origin.data_parallel_rank
        found: dict[str, Float32] = {}
        use = self._origin.caller.use.generating(sum(self.lengths))
        watch = self._service.served.requests.watch(self._origin, 1, self._requests)
        with use, watch:
            for first in range(0, len(self._requests), MAX_OPEN):
                with engine.submit(self._requests[first : first + MAX_OPEN], rank) as stream:
                    watch.placed(stream.engines)
                    while stream.is_open:
                        for event, charge in await stream.next():
                            watch.take(event)
                            found[event.request_id] = _row(event)
                            watch.end(event.request_id, "stop")
                            self._add(charge)
        return [found[request.request_id] for request in self._requests]

    def usage(self) -> PoolingUsage:
        """Return token counts, and device time if the request wants it."""
        num_tokens = sum(self.lengths)
        has_device = self._origin.has_device_usage
        device = device_usage(self._service, self._charge, self._charge.device_ns) if has_device else None
        return PoolingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens, neuronserve=device)

    def _add(self, charge: Charge) -> None:
        total = self._charge
        is_extrapolated = total.is_extrapolated or charge.is_extrapolated
        self._charge = Charge(total.device_ns + charge.device_ns, is_extrapolated)


def _row(event: TokenEvent) -> Float32:
    if event.error is not None:
        raise GenerationFailed(f"The model failed on this request: {event.error}.")
    if event.row is None:
        raise Unavailable("The engine has ended this request.", code="aborted")
    return row_of(event.row)
