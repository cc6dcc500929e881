"""Metrics of admission and of host memory."""

from __future__ import annotations

from functools import partial

from ..admission import Admission
from ..host_memory import HostMemory
from .instruments import Instruments


def show_admission(admission: Admission, instruments: Instruments) -> None:
    """Expose the forecasts that admission uses."""
    for rank in range(admission.num_engines):
        own = instruments.of(engine=str(rank))
        own.gauge("neuronserve:predicted_queue_delay_seconds").set_function(partial(admission.delay_s, rank))
        own.gauge("neuronserve:queued_prompt_tokens").set_function(partial(admission.num_queued_tokens, rank))


def show_memory(memory: HostMemory, instruments: Instruments) -> None:
    """Expose the host memory that was left at the last look."""
    instruments.gauge("neuronserve:host_memory_left_bytes").set_function(lambda: memory.left_bytes)
