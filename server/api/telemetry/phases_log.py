"""With --log-level debug: what each request's time went into, when it has ended."""

from __future__ import annotations

import logging

from neuronserve.server.api.telemetry.lifecycle import RequestLife

log = logging.getLogger("neuronserve.requests")


def log_phases(life: RequestLife) -> None:
    """One line for each of its sequences: where it ran, milliseconds of its phases, and why it ended."""
    for request_id, each in life.sequences.items():
        phases = {"queue": each.queue_s, "prefill": each.prefill_s, "decode": each.decode_s}
        times = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in phases.items() if seconds is not None)
        tokens = f"{each.num_prompt_tokens} ({each.num_cached_tokens} cached) + {each.num_tokens} tokens"
        modelled = f"{each.num_preemptions} preemptions, {each.charge.device_ns / 1e6:.2f} ms of the part"
        words = (life.origin.request_id, request_id, each.engine, times or "never scheduled", tokens, modelled)
        log.debug("request %s, sequence %s on engine %d: %s; %s; %s; ended: %s", *words, each.finish_reason)
