"""Measurement of the generator against a scripted server: its CPU use and lateness on this host."""

from __future__ import annotations

from dataclasses import dataclass

from .bench import measure
from .lag import LagReport
from .local_server import mock_command, running
from .plan import make_plan
from .session import run_loop
from .specs import ArrivalSpec, DatasetSpec, EndpointSpec, RunSpec, Scenario

MAX_CPU_PERCENT = 15.0  # of one core, at CPU_RATE
CPU_RATE = 200.0  # short streamed answers a second
MAX_LAG_MS = 1.0  # p99 of sending, at LAG_RATE
LAG_RATE = 100.0
_TTFT_MS, _ITL_MS, _OUTPUT_TOKENS = 20.0, 5.0, 8


@dataclass(frozen=True, slots=True)
class Check:
    """A figure and its limit."""

    what: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.value <= self.limit

    def text(self) -> str:
        return f"{'ok  ' if self.holds else 'FAIL'} {self.what}: {self.value:.2f}, limit {self.limit:g}"


def self_check(seconds: float) -> tuple[list[Check], list[LagReport]]:
    """Load the scripted server at both rates for `seconds` each."""
    with running(mock_command(_TTFT_MS, _ITL_MS)) as url:
        at_cpu_rate = _run(url, CPU_RATE, seconds)
        at_lag_rate = _run(url, LAG_RATE, seconds)
    checks = [
        Check(f"percent of one core at {CPU_RATE:g} req/s", at_cpu_rate.cpu_percent_of_one_core, MAX_CPU_PERCENT),
        Check(f"send lag p99 in ms at {LAG_RATE:g} req/s", at_lag_rate.send_lag_p99_ms, MAX_LAG_MS),
    ]
    return checks, [at_cpu_rate, at_lag_rate]


def _run(url: str, rate: float, seconds: float) -> LagReport:
    scenario = Scenario(
        name="selfcheck",
        endpoint=EndpointSpec(base_url=url),
        dataset=DatasetSpec(random_input_len=64, random_output_len=_OUTPUT_TOKENS),
        arrival=ArrivalSpec(request_rate=rate, duration_s=seconds),
        run=RunSpec(num_warmups=20),
    )
    return run_loop(measure(scenario, make_plan(scenario, 0), None, lambda _: None)).outcome.lag
