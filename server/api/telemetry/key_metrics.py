"""Metrics of API keys: usage of each key. Device time and price are in `device_families.py`."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from ..keys.use import Accounts, Totals
from .instruments import Instruments, MetricFamily, ReadCounters

LABELS = ("model_name", "api_key")
REQUESTS = MetricFamily(
    "neuronserve:api_key_requests",
    "counter",
    "requests",
    "Requests that were generated or encoded, by the name of their API key; each line of a batch is one",
    LABELS,
)
PROMPT_TOKENS = MetricFamily(
    "neuronserve:api_key_prompt_tokens", "counter", "tokens", "Tokens of their prompts, each prompt once", LABELS
)
CACHED_TOKENS = MetricFamily(
    "neuronserve:api_key_cached_tokens", "counter", "tokens", "Of these, in the prefix cache", LABELS
)
COMPLETION_TOKENS = MetricFamily(
    "neuronserve:api_key_completion_tokens", "counter", "tokens", "Tokens generated for them", LABELS
)
RATE_LIMITED = MetricFamily(
    "neuronserve:api_key_rate_limited", "counter", "requests", "Requests over a limit of their key", LABELS
)
KEY_FAMILIES = (REQUESTS, PROMPT_TOKENS, CACHED_TOKENS, COMPLETION_TOKENS, RATE_LIMITED)
FIELDS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "rate_limited")  # of Totals, in that order


def show_keys(accounts: Accounts, counters: ReadCounters, instruments: Instruments) -> None:
    """Expose the usage of each key."""
    for family, name in zip(KEY_FAMILIES, FIELDS, strict=True):
        counters.add(family, _reader(accounts, attrgetter(name)), **instruments.common)


def _reader(accounts: Accounts, count: Callable[[Totals], int]) -> Callable[[], dict[str, float]]:
    return lambda: {label: count(use.totals) for label, use in accounts.uses.items()}
