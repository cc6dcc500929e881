"""Metrics of sequences that went from engine to engine, after a death or a first token."""

from __future__ import annotations

from ...clock import NS
from ...link.client import EngineClient
from .instruments import Instruments, MetricFamily, ReadCounters

RESTARTS = MetricFamily(
    "neuronserve:engine_restarts",
    "counter",
    "restarts",
    "Restarts of the engine, by `cause`: a `fault` of its own, or a signal from `outside`",
    ("model_name", "engine", "cause"),
)
SEQUENCES = MetricFamily(
    "neuronserve:recovered_sequences",
    "counter",
    "sequences",
    "Sequences of dead engines, by `outcome`: `resumed` by another engine, or `refused` as the cause of the death",
    ("model_name", "engine", "outcome"),
)
TOKENS = MetricFamily(
    "neuronserve:recomputed_tokens",
    "counter",
    "tokens",
    "Recomputed tokens of resumed sequences, by `kind`: of the `prompt`, or `generated`",
    ("model_name", "engine", "kind"),
)
DEVICE_TIME = MetricFamily(
    "neuronserve:recomputed_device_seconds",
    "counter",
    "seconds",
    "Modelled device time of recomputing and of empty slots, `paid_by` the `operator`: no request is charged",
    ("model_name", "engine", "paid_by"),
)
HANDED_OVER = MetricFamily(
    "neuronserve:handed_over_prompt_tokens",
    "counter",
    "tokens",
    "Prompt tokens of requests that another engine handed to this one: KV `copied`, or the rest `computed` again",
    ("model_name", "engine", "kind"),
)
RECOVERY_FAMILIES = (RESTARTS, SEQUENCES, TOKENS, DEVICE_TIME, HANDED_OVER)


def show_recovery(client: EngineClient, counters: ReadCounters, instruments: Instruments) -> None:
    """Expose the cost of one engine's deaths."""
    journal, shared = client.journal, instruments.common
    counters.add(RESTARTS, lambda: client.breaker.restarts, **shared)
    counters.add(SEQUENCES, lambda: journal.sequences, **shared)
    counters.add(TOKENS, lambda: journal.recomputed_tokens, **shared)
    counters.add(HANDED_OVER, lambda: journal.handed_tokens, **shared)
    counters.add(DEVICE_TIME, lambda: {"operator": journal.recomputed_ns / NS}, **shared)
