"""Usage of keys in one of several API processes, reported to the process that has the engines and counts for all.

The process waits for an answer only when a limit of the key may refuse a request. Usage that no limit depends on is
reported with a delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping

import msgspec

from ...link.hub.remote import RemoteEngines
from .file import OTHERS
from .key import NO_LIMITS, KeyLimits
from .use import MAX_NAMES, Usage

KEYS = "keys"  # questions to the hub, by the messages below; the hub calls the workers by it for unreported usage
REPORT_S = 0.2  # delay of usage that no limit depends on
_ENCODER = msgspec.msgpack.Encoder()
_HEADERS = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])
_USAGE = msgspec.msgpack.Decoder(Usage)


class CountRequest(msgspec.Struct, tag=True, frozen=True):
    """KeyUse.count_request."""

    key: str


class Check(msgspec.Struct, tag=True, frozen=True):
    """KeyUse.check."""

    key: str
    num_prompt_tokens: int


class Begin(msgspec.Struct, tag=True, frozen=True):
    """KeyUse.begin, under an id of the worker."""

    id: str
    key: str
    num_prompt_tokens: int
    is_limited: bool


class End(msgspec.Struct, tag=True, frozen=True):
    """KeyUse.end of the generation with that id, if it has begun."""

    id: str


class Used(msgspec.Struct, tag=True, frozen=True):
    """Generated and cached tokens of keys, with or without limits, and device time."""

    tokens: list[tuple[str, bool, int, int]]
    device_ns: dict[str, int]


class Left(msgspec.Struct, tag=True, frozen=True):
    """KeyUse.left."""

    key: str


class Rows(msgspec.Struct, tag=True, frozen=True):
    """Accounts.rows."""

    label: str | None


Message = CountRequest | Check | Begin | End | Used | Left | Rows


class RemoteKeyUse:
    """Account of one key. It has the methods of `KeyUse` that do not belong to the counting process."""

    def __init__(self, name: str, label: str, accounts: RemoteAccounts, is_limited: bool = True) -> None:
        self.name, self.label = name, label
        self.limits = NO_LIMITS
        self._accounts = accounts
        self.is_limited = is_limited

    @property
    def unlimited(self) -> RemoteKeyUse:
        """The same account without limits."""
        return RemoteKeyUse(self.name, self.label, self._accounts, is_limited=False)

    @property
    def may_be_refused(self) -> bool:
        """Return whether a limit of the key may refuse a generation."""
        return (self.limits.tokens_per_minute or self.limits.max_concurrent) is not None

    def limit(self, limits: KeyLimits) -> None:
        """Replace the limits."""
        self.limits = limits

    async def let_in(self) -> None:
        """Count an HTTP request. Raises RateLimited."""
        if self.limits.requests_per_minute is not None:
            await self._accounts.ask(CountRequest(self.name))

    async def require(self, num_prompt_tokens: int) -> None:
        """Raise RateLimited if `generating` would."""
        if self.may_be_refused:
            await self._accounts.ask(Check(self.name, num_prompt_tokens))

    @contextlib.asynccontextmanager
    async def generating(self, num_prompt_tokens: int) -> AsyncIterator[RemoteKeyUse]:
        """Hold a generation open in the `with` block. Raises RateLimited before it."""
        begin = self.begin(self._accounts.new_id(), num_prompt_tokens)
        try:
            if self.may_be_refused:
                await self._accounts.ask(begin)
            else:
                self._accounts.tell(begin)
            yield self
        finally:
            self.end(begin.id)

    def begin(self, name: str, num_prompt_tokens: int) -> Begin:
        """Return the message that begins a generation, under an id of this process; `end` must follow."""
        return Begin(name, self.name, num_prompt_tokens, self.is_limited)

    def end(self, name: str) -> None:
        """Record the end of a generation by its id; a refused one is ignored."""
        if self.limits.tokens_per_minute is not None:
            self._accounts.report_tokens()  # before the client has the end of the answer and sends the next request
        self._accounts.tell(End(name))

    def generated(self, num_tokens: int) -> None:
        """Count generated tokens."""
        self._accounts.count(self, num_tokens, 0)

    def found_cached(self, num_tokens: int) -> None:
        """Count tokens of a prompt found in the prefix cache."""
        self._accounts.count(self, 0, num_tokens)

    async def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers with the remaining limits."""
        if (self.limits.requests_per_minute or self.limits.tokens_per_minute) is None:
            return []
        return _HEADERS.decode(await self._accounts.ask(Left(self.name)))


class RemoteAccounts:
    """Accounts of all keys, kept by the process that has the engines."""

    def __init__(self, engines: RemoteEngines) -> None:
        self._engines = engines
        self._uses: dict[str, RemoteKeyUse] = {}
        self._ids = itertools.count()
        self._generated, self._cached = Counter[tuple[str, bool]](), Counter[tuple[str, bool]]()
        self.device_ns: Mapping[str, int] = {}  # modelled time used by this process, by label
        self._reported_ns: dict[str, int] = {}
        self._report_timer: asyncio.TimerHandle | None = None
        self._token_report: asyncio.Handle | None = None
        engines.handle(KEYS, self._report_now)

    def of(self, name: str) -> RemoteKeyUse:
        """Return the account of a key."""
        if name not in self._uses and len(self._uses) >= MAX_NAMES:
            return RemoteKeyUse(name, OTHERS, self)
        return self._uses.setdefault(name, RemoteKeyUse(name, name, self))

    def new_id(self) -> str:
        """Return an id for a generation that is not one request to the engines."""
        return f"#{next(self._ids)}"

    def count(self, use: RemoteKeyUse, num_generated: int, num_cached: int) -> None:
        """Count tokens and report them: at once if they are limited, so that the next request is checked with them."""
        key = use.name, use.is_limited
        self._generated[key] += num_generated
        self._cached[key] += num_cached
        if use.limits.tokens_per_minute is not None and self._token_report is None:
            self._token_report = asyncio.get_running_loop().call_soon(self.report_tokens)
        self._report_later()

    def report_tokens(self) -> None:
        """Report tokens counted since the last report."""
        if self._token_report is not None:
            self._token_report.cancel()
            self._token_report = None
        if self._generated:
            tokens = [(*key, count, self._cached[key]) for key, count in self._generated.items()]
            self._generated.clear()
            self._cached.clear()
            self.tell(Used(tokens, {}))

    def report_used(self) -> None:
        """Report tokens and device time, and again later as long as there are new ones."""
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None
        self.report_tokens()
        reported, self._reported_ns = self._reported_ns, dict(self.device_ns)
        device_ns = {
            key: ns - reported.get(key, 0) for key, ns in self._reported_ns.items() if ns != reported.get(key, 0)
        }
        if device_ns:
            self.tell(Used([], device_ns))
            self._report_later()

    async def usage(self, label: str | None) -> Usage:
        """Return the usage of all keys, or of the key with that label."""
        return _USAGE.decode(await self.ask(Rows(label)))

    async def ask(self, message: Message) -> bytes:
        """Send a message and return the answer. Raises RateLimited."""
        return await self._engines.ask(KEYS, _ENCODER.encode(message))

    def tell(self, message: Message) -> None:
        """Send a message without an answer."""
        self._engines.tell(KEYS, _ENCODER.encode(message))

    async def _report_now(self, body: bytes) -> bytes:
        self.report_used()
        return body

    def _report_later(self) -> None:
        if self._report_timer is None:
            self._report_timer = asyncio.get_running_loop().call_later(REPORT_S, self.report_used)
