"""Metrics of API keys: usage of each key."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from ..keys.use import Accounts, Totals
from .instruments import Instruments, ReadCounters

FIELDS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "rate_limited")  # of Totals


def show_keys(accounts: Accounts, counters: ReadCounters, instruments: Instruments) -> None:
    """Expose the usage of each key."""
    for name in FIELDS:
        counters.add(f"neuronserve:api_key_{name}", _reader(accounts, attrgetter(name)), **instruments.common)


def _reader(accounts: Accounts, count: Callable[[Totals], int]) -> Callable[[], dict[str, float]]:
    return lambda: {label: count(use.totals) for label, use in accounts.uses.items()}
