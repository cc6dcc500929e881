"""Durations of each request's phases, logged with --log-level debug when it has ended."""

from __future__ import annotations

import logging

from .lifecycle import RequestLife

log = logging.getLogger("neuronserve.requests")


def log_phases(life: RequestLife) -> None:
    """Log one line for each sequence: its engine, milliseconds of its phases, and its finish reason."""
    for request_id, each in life.sequences.items():
        phases = {"queue": each.queue_s, "prefill": each.prefill_s, "decode": each.decode_s}
        times = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in phases.items() if seconds is not None)
        tokens = f"{each.num_prompt_tokens} ({each.num_cached_tokens} cached) + {each.num_tokens} tokens"
        modelled = f"{each.num_preemptions} preemptions, {each.charge.device_ns / 1e6:.2f} ms of the accelerator"
        words = (life.origin.request_id, request_id, each.engine, times or "never scheduled", tokens, modelled)
        log.debug("request %s, sequence %s on engine %d: %s; %s; %s; ended: %s", *words, each.finish_reason)
