"""Limits of request bodies: bytes and JSON values of each, and the memory that all of them take together.

The middleware counts while a body arrives, so a body is refused before anything is parsed. Memory is counted until the
answer has ended, because a request keeps its body until then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import Overloaded, PayloadTooLarge, RateLimited, RequestError
from ...text.fair_threads import is_large, owner
from ..errors import RETRY_AFTER_S, error_response
from .json_meter import BYTES_PER_BYTE, JsonMeter
from .middleware import header

# A client that sends somewhat too much is read to the end, so that it can read the refusal.
POLITE_FACTOR = 4
BODIES_EACH, BODIES_IN_ALL = 16, 64  # memory of bodies, in multiples of the largest one's bytes
RELEASE_BYTES = 2**24  # size of ended bodies after which freed memory is returned to the host
LARGE_BYTES, LARGE_VALUES = 2**18, 2**11  # a larger body is parsed in a thread, beside the event loop


class BodyMemory:
    """Estimated memory of the bodies of all open requests, in total and by client."""

    def __init__(self, most_bytes: int, most_each: int, release: Callable[[], None] = lambda: None) -> None:
        """`release` is called when large bodies have ended."""
        self._most, self._most_each, self._release = most_bytes, most_each, release
        self._held: Counter[str] = Counter()
        self._num_gone_bytes = 0  # since the last release

    @property
    def num_bytes(self) -> int:
        """Memory of the bodies of all clients."""
        return self._held.total()

    def take(self, client: str, num_bytes: int) -> None:
        """Count more memory for a client. Raises RateLimited or Overloaded, and then changes nothing."""
        held = self._held[client]
        if held and held + num_bytes > self._most_each:
            raise RateLimited(
                f"Open requests of this key take {held} bytes, and this one would exceed the limit of "
                f"{self._most_each}. Try again when one of them has ended.",
                "bytes_in_flight",
                RETRY_AFTER_S,
            )
        if held != self.num_bytes and self.num_bytes + num_bytes > self._most:
            message = f"All open requests take {self.num_bytes} bytes of at most {self._most}. Try again."
            raise Overloaded(message, "bytes_in_flight", RETRY_AFTER_S)
        self._held[client] += num_bytes

    def give_back(self, client: str, num_bytes: int) -> None:
        """Count less memory for a client whose request has ended."""
        self._held[client] -= num_bytes
        if not self._held[client]:
            del self._held[client]
        self._num_gone_bytes += num_bytes
        if self._num_gone_bytes > RELEASE_BYTES:
            self._num_gone_bytes = 0
            self._release()


class _Body:
    """One arriving body."""

    def __init__(self, memory: BodyMemory, most: int, is_json: bool) -> None:
        self.num_read = 0
        self._memory, self._most, self._owner = memory, most, owner.get()
        self._meter = JsonMeter() if is_json else None
        self._num_held = 0

    def expect(self, num_bytes: int) -> None:
        """Reserve memory for a body of that size. Raises RateLimited or Overloaded."""
        self._hold(num_bytes * BYTES_PER_BYTE)

    def read(self, part: bytes) -> None:
        """Count a part. Raises RequestError as soon as a limit is passed."""
        self.num_read += len(part)
        if self.num_read > self._most:
            raise _too_large(f"more than {self._most} bytes", self._most)
        if self._meter is None:
            return
        self._meter.feed(part)
        is_large.set(self.num_read > LARGE_BYTES or self._meter.num_values > LARGE_VALUES)
        self._hold(self.num_read * BYTES_PER_BYTE + self._meter.num_built_bytes)

    def end(self) -> None:
        """Release all memory."""
        self._memory.give_back(self._owner, self._num_held)
        self._num_held = 0

    def _hold(self, num_bytes: int) -> None:
        more = num_bytes - self._num_held
        if more > 0:
            self._memory.take(self._owner, more)
            self._num_held += more


class BodyLimit:
    """Refuses a body above a limit: by Content-Length before reading, otherwise as soon as the limit is passed."""

    def __init__(self, app: ASGIApp, max_bytes: int, of_paths: Mapping[str, int], release: Callable[[], None]) -> None:
        """`of_paths`: limits of paths whose bodies go to disk and take no memory. `release`: see BodyMemory."""
        self._app = app
        self._max = max_bytes
        self._of_paths = of_paths
        self._memory = BodyMemory(BODIES_IN_ALL * max_bytes, BODIES_EACH * max_bytes, release)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._of_paths.get(scope["path"], self._max)
        body = _Body(self._memory, most, b"json" in (header(scope, b"content-type") or b""))
        try:
            self._expect(scope, body, most)
        except RequestError as error:
            if header(scope, b"expect") is None:
                await _discard(receive, int(header(scope, b"content-length") or 0), most)
            await error_response(error, scope["path"])(scope, receive, send)
            return
        try:
            await self._app(scope, _counting(receive, body, most), send)
        finally:
            body.end()

    def _expect(self, scope: Scope, body: _Body, most: int) -> None:
        declared = int(header(scope, b"content-length") or 0)
        if declared > most:
            raise _too_large(f"{declared} bytes", most)
        if scope["path"] not in self._of_paths:
            body.expect(declared)


def _counting(receive: Receive, body: _Body, most: int) -> Receive:
    async def counted() -> Message:
        message = await receive()
        try:
            body.read(message.get("body", b""))
        except RequestError:
            if message.get("more_body", False):
                await _discard(receive, body.num_read, most)
            raise
        return message

    return counted


async def _discard(receive: Receive, num_bytes: int, most: int) -> None:
    """Read the rest of a refused body, unless it is far too large."""
    read = 0
    while num_bytes <= POLITE_FACTOR * most and read <= POLITE_FACTOR * most:
        message = await receive()
        read += len(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            return


def _too_large(size: str, most: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body is {size}; this server reads at most {most} bytes.")
