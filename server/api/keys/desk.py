"""Accounts of keys for several API processes, in the process that has the engines."""

from __future__ import annotations

from collections.abc import Awaitable

import msgspec

from ...link.hub.hub import Hub
from .remote import KEYS, Begin, Check, CountRequest, End, Left, Message, Rows, Used
from .ring import KeyRing
from .use import Accounts, KeyUse

_ENCODER = msgspec.msgpack.Encoder()
_MESSAGE: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class AccountsDesk:
    """Counts for the workers of a hub. The generations of a dead worker are ended."""

    def __init__(self, accounts: Accounts, ring: KeyRing, hub: Hub) -> None:
        self._accounts, self._ring, self._hub = accounts, ring, hub
        self._open: dict[int, dict[str, KeyUse]] = {}  # by worker and id
        hub.offer(KEYS, self._take)
        hub.at_end(self._ended)

    def use_of(self, begin: Begin) -> KeyUse:
        """Return the account that a generation's tokens count for."""
        return self._use(begin.key, begin.is_limited)

    def begun(self, worker: int, begin: Begin, use: KeyUse) -> None:
        """Record an open generation."""
        self._open.setdefault(worker, {})[begin.id] = use

    def _take(self, worker: int, body: bytes) -> bytes | Awaitable[bytes]:
        match _MESSAGE.decode(body):
            case CountRequest(key=key):
                self._use(key).count_request()
            case Check(key=key, num_prompt_tokens=count):
                self._use(key).check(count)
            case Begin() as begin:
                use = self.use_of(begin)
                use.begin(begin.num_prompt_tokens)
                self.begun(worker, begin, use)
            case End(id=name):
                if (open_use := self._open.get(worker, {}).pop(name, None)) is not None:
                    open_use.end()
            case Used(tokens=tokens, device_ns=device_ns):
                self._count(tokens, device_ns)
            case Left(key=key):
                return _ENCODER.encode(self._use(key).left())
            case Rows(label=label):
                return self._rows(label)
        return b""

    async def _rows(self, label: str | None) -> bytes:
        await self._hub.ask(KEYS)  # unreported usage arrives before their answers
        return _ENCODER.encode(self._accounts.rows(label))

    def _count(self, tokens: list[tuple[str, bool, int, int]], device_ns: dict[str, int]) -> None:
        for key, is_limited, num_generated, num_cached in tokens:
            use = self._use(key, is_limited)
            use.generated(num_generated)
            use.found_cached(num_cached)
        self._accounts.device_ns.update(device_ns)

    def _use(self, key: str, is_limited: bool = True) -> KeyUse:
        use = self._ring.use_of(key)
        assert isinstance(use, KeyUse)
        return use if is_limited else use.unlimited

    def _ended(self, worker: int) -> None:
        for use in self._open.pop(worker, {}).values():
            use.end()
