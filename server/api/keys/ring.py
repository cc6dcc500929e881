"""The keys of a server: who calls, what each has used, and reloads of their file. Knows no paths and no HTTP.

A key's use belongs to its name: it goes on when the key behind the name, its limits or the file change.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from server.api.keys.file import MAX_KEYS, NO_KEY, OTHERS, read_keys, require_distinct
from server.api.keys.key import NO_LIMITS, Key, KeyLimits, KeysConfig
from server.api.keys.limiter import Limiter
from server.clock import Clock, MonotonicClock
from server.errors import SettingsError

log = logging.getLogger("neuronserve.keys")
MAX_NAMES = 2 * MAX_KEYS  # since the start


@dataclass(slots=True)
class Totals:
    """What requests were given since the server's start; each line of a batch is one."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    rate_limited: int = 0


class KeyUse:
    """What one key has used, and may use."""

    def __init__(self, label: str, clock: Clock, limits: KeyLimits = NO_LIMITS, totals: Totals | None = None) -> None:
        """`label` names it in metrics."""
        self.label = label
        self.totals = totals or Totals()
        self._clock = clock
        self._limiter = Limiter(limits, clock.now())

    @property
    def limits(self) -> KeyLimits:
        return self._limiter.limits

    @property
    def unlimited(self) -> KeyUse:
        """The same account without limits: for what runs when nobody waits for anything."""
        return KeyUse(self.label, self._clock, totals=self.totals)

    def limit(self, limits: KeyLimits) -> None:
        """Have other limits from now on; with the same ones nothing changes."""
        if limits != self._limiter.limits:
            before, self._limiter = self._limiter, Limiter(limits, self._clock.now())
            self._limiter.num_running = before.num_running

    def let_in(self) -> None:
        """Count an HTTP request against the limit of requests. Raises RateLimited."""
        with self._counting():
            self._limiter.let_in(self._clock.now())

    def require(self, num_prompt_tokens: int) -> None:
        """Raise RateLimited where `generating` would."""
        with self._counting():
            self._limiter.require(num_prompt_tokens, self._clock.now())

    @contextlib.contextmanager
    def generating(self, num_prompt_tokens: int) -> Iterator[KeyUse]:
        """While a request is generated. Raises RateLimited before anything."""
        with self._counting():
            self._limiter.begin(num_prompt_tokens, self._clock.now())
        self.totals.requests += 1
        self.totals.prompt_tokens += num_prompt_tokens
        try:
            yield self
        finally:
            self._limiter.end()

    def generated(self, num_tokens: int) -> None:
        """Count tokens that a request was given."""
        self.totals.completion_tokens += num_tokens
        self._limiter.generated(num_tokens, self._clock.now())

    def found_cached(self, num_tokens: int) -> None:
        """Count tokens of a prompt that were in the prefix cache."""
        self.totals.cached_tokens += num_tokens

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What is left, for the head of an answer."""
        return list(self._limiter.headers(self._clock.now()))

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.totals.rate_limited += 1
            raise


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request is from: `name` owns what it stores."""

    name: str
    use: KeyUse
    is_admin: bool = False  # sees what others have stored
    key: Key | None = field(default=None, repr=False)

    @property
    def sees(self) -> str | None:
        """Whose stored objects there are for it; None = everybody's."""
        return None if self.is_admin else self.name

    @property
    def tenant(self) -> str:
        """Whose turn its requests wait for; "" on a server without keys, where there is one queue."""
        return "" if self.key is None else self.name

    def priority(self, asked: int | None) -> int:
        """The priority of a request that asks for one: no better than the key's."""
        best = self.key.priority if self.key is not None else None
        return (asked or 0) if best is None else max(best, best if asked is None else asked)


def anyone() -> Caller:
    """Whoever calls a server without keys."""
    return Caller(NO_KEY, KeyUse(NO_KEY, MonotonicClock()), is_admin=True)


class KeyRing:
    """Keys in force. Used on one event loop."""

    def __init__(self, config: KeysConfig, clock: Clock) -> None:
        """Raises SettingsError where the file is none of keys."""
        self._config, self._clock = config, clock
        self._uses: dict[str, KeyUse] = {}
        self._callers: list[Caller] = []
        self._set(self._read())
        # Whether clients need a key; with operators' flags alone only what is theirs asks for one. Never changes.
        self.asks_clients = config.file is not None or any("inference" in key.scopes for key in config.fixed)
        self.anyone = Caller(NO_KEY, self._use(NO_KEY), is_admin=not self.asks_clients)

    @property
    def has_keys(self) -> bool:
        """Whether there are keys at all; that never changes."""
        return bool(self._callers)

    @property
    def has_operators(self) -> bool:
        """Whether operators have keys that clients do not."""
        kinds = {each.is_admin for each in self._callers}
        return True in kinds and (False in kinds or not self.asks_clients)

    @property
    def uses(self) -> Mapping[str, KeyUse]:
        """By label, of all keys since the start."""
        return self._uses

    def find(self, given: bytes | None) -> Caller | None:
        """Who has sent a key; None when it is nobody's. In constant time, with every key even after a match."""
        digest = hashlib.sha256(given or b"").digest()
        matches = [hmac.compare_digest(digest, each.key.digest) for each in self._callers if each.key is not None]
        return self._callers[matches.index(True)] if given is not None and any(matches) else None

    def named(self, name: str) -> Caller:
        """Whoever has stored something under a name, whether its key is still one or not; without limits."""
        found = next((each for each in self._callers if each.name == name), None)
        if found is None:
            return Caller(name, self._use(name).unlimited, self.anyone.is_admin)
        return Caller(name, found.use.unlimited, found.is_admin, found.key)

    def reload(self) -> None:
        """Read the file again; one that is wrong is logged, and changes nothing."""
        try:
            keys = self._read()
        except SettingsError as error:
            log.error("API keys stay as they are: %s", error)
            return
        before = {each.name for each in self._callers}
        self._set(keys)
        now = {each.name for each in self._callers}
        log.info("%d API keys are in force: %d new, %d gone", len(now), len(now - before), len(before - now))

    def _read(self) -> tuple[Key, ...]:
        config = self._config
        keys = (*config.fixed, *(read_keys(config.file) if config.file is not None else ()))
        require_distinct((f"the key {key.name!r}", key) for key in keys)
        limited = [key.name for key in keys if key.limits != NO_LIMITS]
        if limited and not config.may_limit:
            raise SettingsError(
                f"the key {limited[0]!r} has limits, which need --api-workers 1: each process counts alone"
            )
        return keys

    def _set(self, keys: tuple[Key, ...]) -> None:
        callers = []
        for key in keys:
            use = self._use(key.name)
            use.limit(key.limits)
            callers.append(Caller(key.name, use, "admin" in key.scopes, key))
        self._callers = callers

    def _use(self, name: str) -> KeyUse:
        if name not in self._uses and len(self._uses) >= MAX_NAMES:
            others = self._uses.setdefault(OTHERS, KeyUse(OTHERS, self._clock))
            return KeyUse(OTHERS, self._clock, totals=others.totals)
        return self._uses.setdefault(name, KeyUse(name, self._clock))
