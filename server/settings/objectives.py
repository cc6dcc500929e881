"""Settings of latencies that a server promises, and of waits that it refuses."""

from pydantic import Field

from .base import Settings


class ObjectiveSettings(Settings):
    """Limits of waits and objectives of latency, of requests that state none."""

    max_queue_delay: float | None = Field(
        None, gt=0, le=86400, description="longest wait in seconds; a request that would wait longer gets a 429"
    )
    ttft_slo_ms: float | None = Field(
        None,
        gt=0,
        le=86_400_000,
        description="milliseconds to the first token; a request that would take longer gets a 429 (default: none)",
    )
    tpot_slo_ms: float | None = Field(
        None,
        gt=0,
        le=86_400_000,
        description="milliseconds between tokens; prompts of others may not exceed them, with scheduling_policy slo",
    )
