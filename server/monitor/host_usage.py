"""CPU and memory use of the host and of the server's processes since the last report, in neuron-monitor's fields."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import psutil

from .server_state import local_process

KINDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq")
NAMES = {"iowait": "io_wait", "softirq": "soft_irq"}


class HostUsage:
    """CPU and memory use between two calls. Keeps the counters of the last call."""

    def __init__(self) -> None:
        self._cpus = psutil.cpu_times(percpu=True)
        self._process: tuple[int, float, float] | None = None  # pid, user and system seconds
        self._switches = psutil.cpu_stats().ctx_switches
        self._system_time = self._process_time = time.monotonic()

    def system(self) -> dict[str, Any]:
        """Return the use of the whole host: vCPUs in percent and memory in bytes."""
        cpus, switches = psutil.cpu_times(percpu=True), psutil.cpu_stats().ctx_switches
        period, self._system_time = _since(self._system_time)
        usage = [_percent(before, after) for before, after in zip(self._cpus, cpus, strict=False)]
        average = {kind: round(sum(cpu[kind] for cpu in usage) / len(usage), 2) for kind in usage[0]}
        vcpus = {
            "period": period,
            "average_usage": average,
            "usage_data": {str(i): cpu for i, cpu in enumerate(usage)},
            "context_switch_count": switches - self._switches,
            "error": "",
        }
        self._cpus, self._switches = cpus, switches
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        info = {
            "period": period,
            "memory_total_bytes": memory.total,
            "memory_used_bytes": memory.used,
            "swap_total_bytes": swap.total,
            "swap_used_bytes": swap.used,
            "error": "",
        }
        return {"vcpu_usage": vcpus, "memory_info": info}

    def process(self, pid: int | None) -> dict[str, Any]:
        """Return the use of process `pid` and its children, in percent of one vCPU. `pid` None: on another host."""
        period, self._process_time = _since(self._process_time)
        times = _cpu_seconds(pid)
        if times is None or pid is None:
            self._process = None
            error = "the server's process cannot be seen from here"
            return {"period": period, "vcpu_usage": {"user": 0.0, "system": 0.0}, "error": error}
        last = self._process if self._process is not None and self._process[0] == pid else (pid, *times)
        self._process = (pid, *times)
        user, system = (max(0.0, now - then) for now, then in zip(times, last[1:], strict=True))
        usage = {"user": round(100 * user / period, 2), "system": round(100 * system / period, 2)}
        return {"period": period, "vcpu_usage": usage, "error": ""}


def _since(then: float) -> tuple[float, float]:
    """Return the seconds since `then`, and the time now."""
    now = time.monotonic()
    return max(now - then, 1e-9), now


def _percent(before: Any, after: Any) -> dict[str, float]:
    seconds = {kind: max(0.0, getattr(after, kind, 0.0) - getattr(before, kind, 0.0)) for kind in KINDS}
    total = sum(seconds.values()) or 1.0
    return {NAMES.get(kind, kind): round(100 * value / total, 2) for kind, value in seconds.items()}


def _cpu_seconds(pid: int | None) -> tuple[float, float] | None:
    """Return the user and system seconds of a process and its present children."""
    process = local_process(pid, True)
    if process is None:
        return None
    with suppress(psutil.Error):
        times = [p.cpu_times() for p in (process, *process.children(recursive=True))]
        return sum(t.user for t in times), sum(t.system for t in times)
    return None
