"""Metrics of what the server expects of its load: their families, and where the values are."""

from __future__ import annotations

from functools import partial

from neuronserve.server.api.admission import Admission
from neuronserve.server.api.host_memory import HostMemory
from neuronserve.server.api.telemetry.instruments import Instruments, MetricFamily

QUEUE_DELAY = MetricFamily(
    "neuronserve:predicted_queue_delay_seconds",
    "gauge",
    "seconds",
    "That a request of priority 0 would wait for its place in the batch if it came now: `--max-queue-delay` limits it",
)
MEMORY_LEFT = MetricFamily(
    "neuronserve:host_memory_left_bytes",
    "gauge",
    "bytes",
    "Memory that the server's processes can still take: of `--host-memory-gib`, of the container's limit or of the "
    "host, whichever is least",
    ("model_name",),
)
OVERLOAD_FAMILIES = (QUEUE_DELAY, MEMORY_LEFT)


def show_admission(admission: Admission, instruments: Instruments) -> None:
    """Show what decides whether a request is taken."""
    for rank in range(admission.num_engines):
        gauge = instruments.of(engine=str(rank)).gauge(QUEUE_DELAY)
        gauge.set_function(partial(admission.delay_s, rank))


def show_memory(memory: HostMemory, instruments: Instruments) -> None:
    """Show what is left of the host's memory, as it was looked at last."""
    instruments.gauge(MEMORY_LEFT).set_function(lambda: memory.left_bytes)
