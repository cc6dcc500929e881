"""Service-level objectives: limits on the latencies of requests, for load tests and simulations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..server.errors import SettingsError
from .workload import BoolArray


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits that a good request meets, all of them. Milliseconds; None = no limit."""

    ttft_ms: float | None = None  # to the first token
    tpot_ms: float | None = None  # per output token after the first; 0 for an answer of one token
    e2el_ms: float | None = None  # of the whole request
    attainment: float = 0.99  # share of requests that must be good at a sustainable rate

    def __post_init__(self) -> None:
        """Raise SettingsError for limits that no request can meet."""
        for name in ("ttft_ms", "tpot_ms", "e2el_ms"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise SettingsError(f"{name} is {limit:g}: it must be above 0")
        if not 0 < self.attainment <= 1:
            raise SettingsError(f"attainment is {self.attainment:g}: it must be above 0 and at most 1")

    @property
    def is_set(self) -> bool:
        """Whether there is any limit."""
        return (self.ttft_ms, self.tpot_ms, self.e2el_ms) != (None, None, None)

    def are_met(self, ttft_ms: npt.ArrayLike, tpot_ms: npt.ArrayLike, e2el_ms: npt.ArrayLike) -> BoolArray:
        """Return flags `[n]` of the requests that met every limit."""
        met = np.ones(np.shape(ttft_ms), dtype=np.bool_)
        for values, limit in ((ttft_ms, self.ttft_ms), (tpot_ms, self.tpot_ms), (e2el_ms, self.e2el_ms)):
            if limit is not None:
                met &= np.asarray(values) <= limit
        return met
