"""Modelled device time, dollars and padding, by engine and by API key. Sums are integers, divided at a scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from ...clock import NS, Clock
from ...cost.charge_rate import ChargeRate
from ...link.client import EngineClient
from ...link.messages import Tokens
from ...types import DeviceStep
from ..keys.file import NO_KEY
from .instruments import Instruments, ReadCounters


class DeviceAccount:
    """Sums of one engine since its start; `record` observes its client. Only idle time needs the clock."""

    def __init__(self, clock: Clock, is_idle: Callable[[], bool]) -> None:
        self._clock, self._is_idle = clock, is_idle
        self.ready_s = self._end_s = clock.now()  # `_end_s`: of the last step
        self._reported_idle_ns = 0  # by the engine
        self._shown_idle_ns = 0
        self.busy_ns = {"prefill": 0, "decode": 0}
        self.num_tokens = {"prefill": 0, "decode": 0}
        self.num_padding = {"prefill": 0, "decode": 0}
        self.pace_steps = {"in_time": 0, "late": 0}  # of paced steps
        self.lag_ns = 0
        self.flops = self.hbm_bytes = 0

    def record(self, tokens: Tokens) -> None:
        """Add one turn of the engine."""
        report = tokens.report
        if report.device is None:
            return
        self._end_s = report.time
        self.num_tokens["prefill"] += report.num_prefill_tokens
        self.num_tokens["decode"] += report.num_decode_tokens
        self._add(report.device)

    def _add(self, step: DeviceStep) -> None:
        self.busy_ns["prefill"] += step.prefill_ns
        self.busy_ns["decode"] += step.decode_ns
        self._reported_idle_ns += step.idle_ns
        self.num_padding["prefill"] += step.num_prefill_padding
        self.num_padding["decode"] += step.num_decode_padding
        self.flops += step.flops
        self.hbm_bytes += step.hbm_bytes
        self.lag_ns += step.lag_ns
        if step.late_ns is not None:
            self.pace_steps["late" if step.is_late else "in_time"] += 1

    @property
    def idle_ns(self) -> int:
        """Idle time up to now; the engine reports a pause only after its end. Never decreases."""
        pause_s = self._clock.now() - self._end_s if self._is_idle() else 0.0
        self._shown_idle_ns = max(self._shown_idle_ns, self._reported_idle_ns + round(pause_s * NS))
        return self._shown_idle_ns

    @property
    def wall_ns(self) -> int:
        """Wall clock since the engine was ready: what the instance is paid for."""
        return round((self._clock.now() - self.ready_s) * NS)

    def time_ns(self) -> dict[str, int]:
        """Modelled time by kind; the sum is the engine's whole time."""
        return {**self.busy_ns, "idle": self.idle_ns}

    def usd(self, rate: ChargeRate) -> dict[str, float]:
        """Dollars by kind, including unused cores of the instance; empty when no price is known."""
        if rate.usd_per_hour is None:
            return {}
        times = self.time_ns()
        unused = rate.unused_usd(sum(times.values()))
        return {**{kind: rate.usd(ns) or 0.0 for kind, ns in times.items()}, "unused_cores": unused or 0.0}

    def padding_fraction(self, kind: str) -> float:
        """Share of padding in all computed tokens, 0 to 1."""
        computed = self.num_tokens[kind] + self.num_padding[kind]
        return self.num_padding[kind] / computed if computed else 0.0


class KeyAccount:
    """Modelled device time by API key, in whole nanoseconds.

    A sequence counts for its key until the engine reports its end, which may be after the client has its answer."""

    def __init__(self) -> None:
        self.device_ns: Counter[str] = Counter()
        self._keys: dict[str, str] = {}
        self._reported: dict[str, int] = {}

    def open(self, request_ids: Iterable[str], key: str) -> None:
        """Count these sequences for `key`."""
        for request_id in request_ids:
            self._keys[request_id] = key

    def record(self, tokens: Tokens) -> None:
        """Add the time that each sequence used in one turn of an engine."""
        for event, charge in tokens.charged():
            name, total_ns = event.request_id, charge.device_ns
            self.device_ns[self._keys.get(name, NO_KEY)] += total_ns - self._reported.get(name, 0)
            if event.finish_reason is None:
                self._reported[name] = total_ns
            else:
                self._reported.pop(name, None)
                self._keys.pop(name, None)


def show_device(account: DeviceAccount, rate: ChargeRate, instruments: Instruments, counters: ReadCounters) -> None:
    """Expose `account` under the families of modelled time."""
    shared = instruments.common
    counters.add("neuronserve:device_seconds", lambda: _seconds(account.time_ns()), **shared)
    counters.add("neuronserve:cost_usd", lambda: account.usd(rate), **shared)
    if rate.usd_per_hour is not None:
        engine = shared["engine"]
        counters.add("neuronserve:instance_cost_usd", lambda: {engine: rate.rent_usd(account.wall_ns) or 0.0}, **shared)
    counters.add("neuronserve:device_tokens", lambda: account.num_tokens, **shared)
    counters.add("neuronserve:device_padding_tokens", lambda: account.num_padding, **shared)
    counters.add("neuronserve:pace_steps", lambda: account.pace_steps, **shared)
    counters.add("neuronserve:device_work", lambda: {"flops": account.flops, "hbm_bytes": account.hbm_bytes}, **shared)
    for kind in account.num_padding:
        gauge = instruments.gauge("neuronserve:device_padding_fraction", kind=kind)
        gauge.set_function(partial(account.padding_fraction, kind))
    instruments.gauge("neuronserve:pace_lag_seconds").set_function(lambda: account.lag_ns / NS)


def device_account(client: EngineClient, clock: Clock) -> DeviceAccount:
    """Return the account of a ready engine. The engine is idle while it lives and has no open sequences."""
    return DeviceAccount(clock, lambda: client.is_alive and client.num_open == 0)


def _seconds(times_ns: Mapping[str, int]) -> dict[str, float]:
    return {kind: ns / NS for kind, ns in times_ns.items()}
