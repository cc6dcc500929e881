"""Metrics of admission and of host memory."""

from __future__ import annotations

from functools import partial

from ..admission import Admission
from ..host_memory import HostMemory
from .instruments import Instruments, MetricFamily

QUEUE_DELAY = MetricFamily(
    "neuronserve:predicted_queue_delay_seconds",
    "gauge",
    "seconds",
    "Wait for a place in the batch of a request of priority 0 that comes now: `--max-queue-delay` limits it",
)
QUEUED = MetricFamily(
    "neuronserve:queued_prompt_tokens",
    "gauge",
    "tokens",
    "Prompt tokens to compute before those of a request of priority 0 that comes now",
)
MEMORY_LEFT = MetricFamily(
    "neuronserve:host_memory_left_bytes",
    "gauge",
    "bytes",
    "Memory that the server's processes can still take: of `--host-memory-gib`, of the container's limit or of the "
    "host, whichever is least",
    ("model_name",),
)
OVERLOAD_FAMILIES = (QUEUE_DELAY, QUEUED, MEMORY_LEFT)


def show_admission(admission: Admission, instruments: Instruments) -> None:
    """Expose the forecasts that admission uses."""
    for rank in range(admission.num_engines):
        own = instruments.of(engine=str(rank))
        own.gauge(QUEUE_DELAY).set_function(partial(admission.delay_s, rank))
        own.gauge(QUEUED).set_function(partial(admission.num_queued_tokens, rank))


def show_memory(memory: HostMemory, instruments: Instruments) -> None:
    """Expose the host memory that was left at the last look."""
    instruments.gauge(MEMORY_LEFT).set_function(lambda: memory.left_bytes)
