"""One HTTP request on its way through a gateway: its messages, what is answered, and its place in the ledger. No IO."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from typing import Any

from ...api.errors import RETRY_AFTER_S, as_request_error
from ...api.http.body_limit import BODIES_IN_ALL, BodyMemory
from ...api.http.objectives import SESSION_HEADER
from ...errors import Overloaded, PayloadTooLarge, Unavailable
from ..asked import STORED
from ..config import PickConfig
from ..events import END
from ..fleet import Fleet
from ..metrics import Metrics
from ..prompt import Prompt, prompt_of
from ..replica import Replica
from . import messages
from .envoy import BODY_MODES, FULL_DUPLEX_STREAMED, NONE


class Picker:
    """State that the requests of a gateway share. `num_open` counts those that are not over."""

    def __init__(self, config: PickConfig, fleet: Fleet) -> None:
        self.config, self.fleet, self.metrics, self.num_open = config, fleet, Metrics(fleet), 0
        most = BODIES_IN_ALL * config.max_body_bytes
        self.memory = BodyMemory(most, most)

    def eligible(self, subset: Sequence[str] | None) -> list[Replica]:
        """Return the replicas, if given of a subset, that may get a request. Raises Unavailable and Overloaded."""
        some, of_subset, most = self.fleet.up, "", self.config.max_open_tokens
        if subset is not None:
            some, of_subset = [each for each in some if each.endpoint in subset], " of the gateway's subset"
        if not some:
            raise Unavailable(f"No replica{of_subset} is up.", code="no_replica")
        if below := [each for each in some if not most or self.fleet.ledger.num_open_tokens(each.number) <= most]:
            return below
        message = f"Each replica{of_subset} has more than {most} tokens of open requests. Try again."
        raise Overloaded(message, "max_open_tokens", RETRY_AFTER_S)


class Processing:
    """State of one request."""

    def __init__(self, picker: Picker) -> None:
        self._picker, self._ledger = picker, picker.fleet.ledger
        self._headers, self._prompt, self._is_stream = dict[str, str](), Prompt(), False
        self._subset: list[str] | None = None
        self._parts, self._num_bytes = list[bytes](), 0  # of the body
        self._name, self._chosen = str(id(self)), list[Replica]()

    def take(self, request: Any) -> Iterator[Any]:
        """Yield what is answered to one message; nothing is to be answered after an immediate response."""
        kind = request.WhichOneof("request")
        try:
            yield from (self._asked if kind.startswith("request") else self._answered)(request, kind)
        except Exception as error:
            yield messages.refusal(as_request_error(error), self._headers.get(":path", ""))

    def end(self) -> None:
        """Remove the request from the ledger, and its body from memory. May be called twice."""
        self._ledger.end(self._name)
        self._picker.memory.give_back("", self._num_bytes)
        self._parts, self._num_bytes = [], 0

    def _asked(self, request: Any, kind: str) -> Iterator[Any]:
        """Keep the request; at its end, choose and let it pass."""
        part, is_trailed = getattr(request, kind), kind == "request_trailers"
        if kind == "request_headers":
            self._headers = messages.headers_of(part)
            self._subset = messages.endpoints(request, messages.SUBSET_NAMESPACE, messages.SUBSET)
            modes = request.protocol_config.request_body_mode, request.protocol_config.response_body_mode
            if modes[0] != FULL_DUPLEX_STREAMED or modes[1] not in (FULL_DUPLEX_STREAMED, NONE):
                found = " and ".join(BODY_MODES[mode] if mode < len(BODY_MODES) else str(mode) for mode in modes)
                raise Unavailable(f"The gateway's body modes are {found}, not FULL_DUPLEX_STREAMED.", code="body_mode")
        elif not is_trailed:
            self._read(part.body)
        if is_trailed or part.end_of_stream:
            body = b"".join(self._parts)
            yield self._choose(body)
            if body or kind == "request_body":
                yield from messages.streamed("request_body", body, not is_trailed)
            self._picker.memory.give_back("", self._num_bytes)
            self._parts, self._num_bytes = [], 0
        if is_trailed:
            yield messages.unchanged(kind)

    def _read(self, part: bytes) -> None:
        """Keep a part of the body. Raises PayloadTooLarge and Overloaded."""
        if self._num_bytes + len(part) > (most := self._picker.config.max_body_bytes):
            raise PayloadTooLarge(f"The body is larger than the {most} bytes that this picker reads.")
        self._picker.memory.take("", len(part))
        self._num_bytes += len(part)
        self._parts.append(part)

    def _choose(self, body: bytes) -> Any:
        """Count the request at the best replica; the least loaded others are for retries. Raises as `eligible`."""
        picker, ledger = self._picker, self._ledger
        self._prompt = prompt_of(body) if self._headers.get(":method") == "POST" else Prompt()
        some = picker.eligible(self._subset)
        first = self._place(some[:1] if self._headers.get(":path", "").startswith(STORED) else some)
        picker.metrics.asked(first)
        others = (each for each in some if each is not first)
        rest = nsmallest(picker.config.num_endpoints - 1, others, key=lambda each: ledger.num_open_tokens(each.number))
        self._chosen = [first, *rest]
        return messages.destination([each.endpoint for each in self._chosen])

    def _place(self, some: Sequence[Replica]) -> Replica:
        asked = self._name, self._prompt.digests, self._prompt.num_tokens, self._headers.get(SESSION_HEADER, "")
        number = self._ledger.place_prompt(*asked, among=[each.number for each in some])
        return self._picker.fleet.replicas[number]

    def _answered(self, request: Any, kind: str) -> Iterator[Any]:
        """Let a part of the answer pass, and count its events: about a token each."""
        part = getattr(request, kind)
        if kind == "response_headers":
            headers = messages.headers_of(part)
            self._is_stream = "text/event-stream" in headers.get("content-type", "")
            if served := messages.endpoints(request, messages.NAMESPACE, messages.SERVED):
                self._move(served[0])
            if headers.get(":status") in ("502", "503", "504") and self._chosen:
                self._chosen[0].suspect()
        elif kind == "response_body":
            self._ledger.generated(self._name, part.body.count(END) if self._is_stream else 0)
        if kind == "response_trailers" or part.end_of_stream:
            self.end()
        is_body = kind == "response_body"
        yield from messages.streamed(kind, part.body, part.end_of_stream) if is_body else (messages.unchanged(kind),)

    def _move(self, served: str) -> None:
        """Count the request at the replica that answers it, and suspect those that the gateway has tried before."""
        at = next((i for i, each in enumerate(self._chosen) if each.endpoint == served), 0)
        for replica in self._chosen[:at]:
            replica.suspect()
        if at:
            self._chosen = self._chosen[at:]
            self._ledger.end(self._name)
            self._place(self._chosen[:1])
