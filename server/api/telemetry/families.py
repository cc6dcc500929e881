"""Every metric of this server: rows of families.json, which the registry and docs/reference/metrics.md are made from.

Names, labels and buckets of `vllm:` are those of vLLM 0.33, so that tools for its metrics read these. Families of vLLM
that this server cannot measure are absent. `http_` follows the names of prometheus-fastapi-instrumentator.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

import msgspec

Kind = Literal["gauge", "counter", "histogram"]
# Limits that an HTTP request can exceed.
LIMITS = ("max_num_queued_reqs", "max_queue_delay", "ttft_slo_ms", "host_memory_gib")


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric as it is documented and exposed. A counter's name is written without its `_total`."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: tuple[str, ...] = ("model_name", "engine")
    buckets: tuple[float, ...] | str = ()  # upper bounds of a histogram, without +Inf, or their name in the table

    @property
    def exposed(self) -> str:
        """The name at a scrape; a histogram's is followed by `_bucket`, `_sum` or `_count`."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    @property
    def bounds(self) -> tuple[float, ...]:
        """Upper bounds of a histogram; empty where the context length decides."""
        return BUCKETS[self.buckets] if isinstance(self.buckets, str) else self.buckets


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    buckets: dict[str, tuple[int | float, ...]]
    older_names: dict[str, str]  # of vLLM, that routers and dashboards still read
    families: tuple[MetricFamily, ...]


_TABLE = msgspec.json.decode(files(__package__ or "").joinpath("families.json").read_bytes(), type=_Table)
BUCKETS, FAMILIES = _TABLE.buckets, _TABLE.families
_BY_NAME = {family.name: family for family in FAMILIES}


def family_of(name: str) -> MetricFamily:
    """Return the family of that name."""
    return _BY_NAME[name]


ALIASES = {old: family_of(name) for old, name in _TABLE.older_names.items()}


def one_two_five(most: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50, ... up to `most`: the bounds of token counts."""
    bounds = [mantissa * 10**exponent for exponent in range(len(str(most))) for mantissa in (1, 2, 5)]
    return tuple(bound for bound in bounds if bound <= most)
