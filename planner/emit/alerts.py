"""Alerts on a deployment's servers: rows that the chart's PrometheusRule and the alarms of CloudWatch are both made of.

`python -m tools.helm_chart` writes them to the chart. Names in `__` stand for what differs between deployments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_WAITING = 20  # default of the chart's value


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert fires when `query` (PromQL) has returned a row for `pending_s`.

    `{{ }}` in the summary is a template of Prometheus. `slo` names the limit of the histogram `metric`, if any.
    """

    name: str
    severity: str
    pending_s: int
    query: str
    summary: str
    metric: str = ""
    slo: str = ""

    def on_means(self) -> tuple[str, str]:
        """Return query and summary for CloudWatch: it has no series `_bucket`, and a plan promises means."""
        if self.slo:
            mean = f"histogram_avg(sum(rate({self.metric}{{__SERIES__}}[10m])))"
            return f"{mean} > __{self.slo}__", f"The mean of {self.metric} of __RELEASE__ is above __{self.slo}__ s."
        return self.query, re.sub(r"\{\{.*?\}\}", "Too many", self.summary)


def _latency(name: str, metric: str, kind: str, what: str) -> Alert:
    within = f'sum(rate({metric}_bucket{{__SERIES__,le="__{kind}_BOUND__"}}[10m]))'
    return Alert(
        f"{name}Slow",
        "warning",
        600,
        f"{within}\n  / sum(rate({metric}_count{{__SERIES__}}[10m])) < __OBJECTIVE__",
        f"{{{{ $value | humanizePercentage }}}} of the requests to __RELEASE__ keep __{kind}_SLO__ s for the {what}; "
        "__PERCENT__ % should.",
        metric,
        f"{kind}_SLO",
    )


ALERTS = (
    Alert("Down", "critical", 300, "absent(up{__SERIES__} == 1)", "No server of __RELEASE__ answers scrapes."),
    Alert(
        "RequestsWait",
        "warning",
        300,
        "sum(vllm:num_requests_waiting{__SERIES__}) / count(up{__SERIES__} == 1) > __MAX_WAITING__",
        "{{ $value }} requests wait on each server of __RELEASE__; add servers or a larger part.",
    ),
    Alert(
        "KVCacheFull",
        "warning",
        600,
        "max(vllm:kv_cache_usage_perc{__SERIES__}) > 0.95",
        "The KV cache of a server of __RELEASE__ is full; requests are preempted and computed again.",
    ),
    Alert(
        "ServerErrors",
        "critical",
        300,
        'sum(rate(http_requests_total{__SERIES__,status="5xx"}[5m]))\n'
        "  / sum(rate(http_requests_total{__SERIES__}[5m])) > 0.01",
        "{{ $value | humanizePercentage }} of the requests to __RELEASE__ end with a 5xx.",
    ),
    _latency("FirstToken", "vllm:time_to_first_token_seconds", "TTFT", "first token"),
    _latency("OutputToken", "vllm:request_time_per_output_token_seconds", "TPOT", "time per output token"),
)


def filled(text: str, values: dict[str, str]) -> str:
    """Return the text with each `__NAME__` replaced. Raises KeyError for a name without a value."""
    return re.sub(r"__([A-Z_]+?)__", lambda found: values[found[1]], text)
