"""Limits of one key: two token buckets and a count of open requests. Pure: `now` is an argument.

A bucket holds what a minute gives and fills evenly. Units known beforehand, a request and the tokens of its prompt,
must be available. Generated tokens are taken as they come and may overdraw the bucket, so no request ends in the
middle, and the debt is paid by time before the next request begins. Over any time t a key gets at most (t / 60 s + 1) x
limit, and the tokens that the last admitted requests generated beyond.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from ...errors import RateLimited
from .key import KeyLimits

MINUTE_S = 60.0
SLACK = 1e-6  # of a unit, so that rounding does not refuse a client that waited for the announced time


class TokenBucket:
    """Bucket of at most `per_minute` units, refilled by as many each minute."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level, self._time = float(per_minute), now

    def level(self, now: float) -> float:
        """Units in the bucket; below 0 when it is overdrawn."""
        filled = self._level + max(0.0, now - self._time) * self.per_minute / MINUTE_S
        return min(float(self.per_minute), filled)

    def wait_s(self, amount: int, now: float) -> float:
        """Seconds until `amount` can be taken, or until the bucket is full if that is less; 0 = now."""
        lacking = min(amount, self.per_minute) - self.level(now)
        return lacking * MINUTE_S / self.per_minute if lacking > SLACK else 0.0

    def take(self, amount: int, now: float) -> None:
        """Take `amount`, even if that overdraws the bucket."""
        self._level, self._time = self.level(now) - amount, max(now, self._time)

    def reset_s(self, now: float) -> float:
        """Seconds until the bucket is full."""
        return (self.per_minute - self.level(now)) * MINUTE_S / self.per_minute


class Limiter:
    """Limits of one key. A refusal changes nothing."""

    def __init__(self, limits: KeyLimits, now: float) -> None:
        self.limits = limits
        self.num_running = 0
        self._requests = _bucket(limits.requests_per_minute, now)
        self._tokens = _bucket(limits.tokens_per_minute, now)

    def let_in(self, now: float) -> None:
        """Take one request. Raises RateLimited."""
        if self._requests is not None:
            _require(self._requests, 1, now, "requests")
            self._requests.take(1, now)

    def begin(self, num_prompt_tokens: int, now: float) -> None:
        """Take the tokens of a prompt that will be computed; `end` must follow. Raises RateLimited."""
        self.require(num_prompt_tokens, now)
        if self._tokens is not None:
            self._tokens.take(num_prompt_tokens, now)
        self.num_running += 1

    def require(self, num_prompt_tokens: int, now: float) -> None:
        """Raise RateLimited if `begin` would."""
        most = self.limits.max_concurrent
        if most is not None and self.num_running >= most:
            message = f"This key has {self.num_running} open requests, its limit. Try again when one has ended."
            raise RateLimited(message, "concurrent_requests", 1)
        if self._tokens is not None:
            _require(self._tokens, num_prompt_tokens, now, "tokens")

    def generated(self, num_tokens: int, now: float) -> None:
        """Take generated tokens."""
        if self._tokens is not None:
            self._tokens.take(num_tokens, now)

    def end(self) -> None:
        """Record the end of a generation."""
        self.num_running -= 1

    def headers(self, now: float) -> Iterator[tuple[bytes, bytes]]:
        """Return the remaining limits as OpenAI's headers."""
        for kind, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                left = max(0, int(bucket.level(now) + SLACK))
                for name, value in (
                    ("limit", str(bucket.per_minute)),
                    ("remaining", str(left)),
                    ("reset", duration(bucket.reset_s(now))),
                ):
                    yield f"x-ratelimit-{name}-{kind}".encode(), value.encode()


def duration(seconds: float) -> str:
    """Return seconds in OpenAI's format: `120ms`, `8.64s`, `6m0s`."""
    milliseconds = ceil(seconds * 1000 - SLACK)
    if milliseconds < 1000:
        return f"{max(0, milliseconds)}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"


def _bucket(per_minute: int | None, now: float) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket(per_minute, now)


def _require(bucket: TokenBucket, amount: int, now: float, kind: str) -> None:
    wait_s = bucket.wait_s(amount, now)
    if wait_s > 0:
        left = max(0, int(bucket.level(now)))
        message = (
            f"Rate limit reached for this key on {kind} per minute: limit {bucket.per_minute}, left {left}, requested "
            f"{amount}. Please try again in {duration(wait_s)}."
        )
        raise RateLimited(message, kind, ceil(wait_s))
