"""Usage of API keys since the start, and their limits."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...clock import Clock
from .file import MAX_KEYS, OTHERS
from .key import NO_LIMITS, KeyLimits
from .limiter import Limiter

MAX_NAMES = 2 * MAX_KEYS  # since the start


@dataclass(slots=True)
class Totals:
    """Totals of requests since the server's start; each line of a batch is one request."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    rate_limited: int = 0


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Usage of one key."""

    label: str
    totals: Totals
    device_ns: int
    limits: KeyLimits


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of keys, since a time in Unix seconds."""

    since: int
    rows: list[UsageRow]


class KeyUse:
    """Usage and limits of one key."""

    def __init__(self, label: str, clock: Clock, limits: KeyLimits = NO_LIMITS, totals: Totals | None = None) -> None:
        """`label` names the key in metrics."""
        self.label = label
        self.totals = totals or Totals()
        self._clock = clock
        self._limiter = Limiter(limits, clock.now())

    @property
    def limits(self) -> KeyLimits:
        return self._limiter.limits

    @property
    def unlimited(self) -> KeyUse:
        """The same account without limits, for background work."""
        return KeyUse(self.label, self._clock, totals=self.totals)

    def limit(self, limits: KeyLimits) -> None:
        """Replace the limits; equal limits change nothing."""
        if limits != self._limiter.limits:
            before, self._limiter = self._limiter, Limiter(limits, self._clock.now())
            self._limiter.num_running = before.num_running

    def let_in(self) -> None:
        """Count an HTTP request against the limit of requests. Raises RateLimited."""
        with self._counting():
            self._limiter.let_in(self._clock.now())

    def check(self, num_prompt_tokens: int) -> None:
        """Raise RateLimited if `begin` or `generating` would."""
        with self._counting():
            self._limiter.require(num_prompt_tokens, self._clock.now())

    def begin(self, num_prompt_tokens: int) -> None:
        """Record the begin of a generation; `end` must follow. Raises RateLimited before it."""
        with self._counting():
            self._limiter.begin(num_prompt_tokens, self._clock.now())
        self.totals.requests += 1
        self.totals.prompt_tokens += num_prompt_tokens

    def end(self) -> None:
        """Record the end of a generation."""
        self._limiter.end()

    @contextlib.contextmanager
    def generating(self, num_prompt_tokens: int) -> Iterator[KeyUse]:
        """Hold a generation open in the `with` block. Raises RateLimited before it."""
        self.begin(num_prompt_tokens)
        try:
            yield self
        finally:
            self.end()

    def generated(self, num_tokens: int) -> None:
        """Count generated tokens."""
        self.totals.completion_tokens += num_tokens
        self._limiter.generated(num_tokens, self._clock.now())

    def found_cached(self, num_tokens: int) -> None:
        """Count tokens of a prompt found in the prefix cache."""
        self.totals.cached_tokens += num_tokens

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers with the remaining limits."""
        return list(self._limiter.headers(self._clock.now()))

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.totals.rate_limited += 1
            raise


class Accounts:
    """Accounts of all keys since the start, by their labels in metrics."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._uses: dict[str, KeyUse] = {}
        self.device_ns: Counter[str] = Counter()  # modelled time, by label
        self.since = 0  # Unix seconds

    @property
    def uses(self) -> Mapping[str, KeyUse]:
        """Accounts by label."""
        return self._uses

    def of(self, name: str) -> KeyUse:
        """Return the account of a key."""
        if name not in self._uses and len(self._uses) >= MAX_NAMES:
            others = self._uses.setdefault(OTHERS, KeyUse(OTHERS, self._clock))
            return KeyUse(OTHERS, self._clock, totals=others.totals)
        return self._uses.setdefault(name, KeyUse(name, self._clock))

    def usage(self, label: str | None) -> Usage:
        """Return the usage of all keys, or of the key with that label."""
        uses = [use for use in self._uses.values() if label is None or (use.label == label != OTHERS)]
        return Usage(self.since, [UsageRow(e.label, e.totals, self.device_ns[e.label], e.limits) for e in uses])
