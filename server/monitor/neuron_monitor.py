"""`neuronserve monitor`: one JSON line each period, in the schema of neuron-monitor, about a running server.

Schema: SDK tools/neuron-sys-tools/neuron-monitor-user-guide.rst. Fields that an emulated device does not have are
empty, zero or null (listed in docs/guides/monitoring.md). Numbers are those of the period, CPU and memory use too.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import psutil

from .interruption import ends_quietly
from .scrape import Endpoint, Scrape, Unreachable, Window, histogram_percentiles
from .server_state import CoreState, ServerState, local_process

STEP_SECONDS = "neuronserve:engine_step_seconds"
GROUP: dict[str, tuple[str, ...]] = {
    "constants": ("weights",),
    "model_code": ("code",),
    "model_shared_scratchpad": ("scratchpad",),
    "runtime_memory": ("runtime", "collectives", "dma_rings"),
    "tensors": ("kv",),
}


class Monitor:
    """Reports on one server, each about the time since the last report. The first scrape must succeed."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Scrape the server once. Raises Unreachable."""
        self._endpoint = endpoint
        self._last = endpoint.scrape()
        self._host = HostUsage()

    def report(self) -> dict[str, Any]:
        """Return a report on the time since the last one. If the server is gone, the report has an error."""
        try:
            scrape, error = self._endpoint.scrape(), ""
        except Unreachable as gone:
            scrape, error = self._last, str(gone)
        window, self._last = Window(self._last, scrape), scrape
        state = ServerState.of(scrape)
        runtime = _runtime(window, state, error)
        usage = self._host.process(state.pid if self._endpoint.is_local else None)
        runtime["report"]["neuron_runtime_vcpu_usage"] = usage
        return {
            "neuron_runtime_data": [runtime],
            "system_data": {"neuron_hw_counters": _hw_counters(window, state), **self._host.system()},
            "instance_info": _instance_info(state),
            "neuron_hardware_info": _hardware_info(state),
        }


@ends_quietly()
def run_monitor(endpoint: Endpoint, interval_s: float, is_once: bool) -> None:
    """Write one report, or reports until interrupted. Raises Unreachable if no server answers at first."""
    monitor = Monitor(endpoint)
    while True:
        time.sleep(interval_s)
        print(json.dumps(monitor.report()), flush=True)
        if is_once:
            return


def _runtime(window: Window, state: ServerState, error: str) -> dict[str, Any]:
    period = window.seconds
    return {
        "pid": state.pid,
        "address": "",
        "neuron_runtime_tag": state.model,
        "error": error,
        "report": {
            "neuroncore_counters": {
                "period": period,
                "neuroncores_in_use": {str(core.core_id): _utilization(window, state, core) for core in state.cores},
                "error": "",
            },
            "execution_stats": {"period": period, **_execution_stats(window), "error": ""},
            "memory_used": {"period": period, **_memory_used(window.after, state), "error": ""},
        },
    }


def _utilization(window: Window, state: ServerState, core: CoreState) -> dict[str, Any]:
    """Return the percentage of time in which the core's engine ran a step, and modelled FLOP/s, null if not known."""
    work, engine = "neuronserve:device_work_total", core.engine
    cores = sum(other.engine == engine for other in state.cores)
    busy = window.rate(f"{STEP_SECONDS}_sum", engine=engine)
    flops = window.rate(work, engine=engine, quantity="flops") / cores if window.after.has(work) else None
    return {"neuroncore_utilization": round(min(100.0, 100 * busy), 3), "flops": flops}


def _execution_stats(window: Window) -> dict[str, Any]:
    latency = histogram_percentiles(window, STEP_SECONDS)
    completed = round(window.increase(f"{STEP_SECONDS}_count"))
    errors = round(window.increase("vllm:request_success_total", finished_reason="error"))
    return {
        "error_summary": {"generic": 0, "numerical": errors, "transient": 0, "model": 0, "runtime": 0, "hardware": 0},
        "execution_summary": {
            "completed": completed,
            "completed_with_err": 0,
            "completed_with_num_err": errors,
            "timed_out": 0,
            "incorrect_input": 0,
            "failed_to_queue": 0,
        },
        "latency_stats": {"total_latency": latency, "device_latency": None},
    }


def _memory_used(scrape: Scrape, state: ServerState) -> dict[str, Any]:
    host = round(scrape.total("process_resident_memory_bytes"))
    device = round(sum(core.used_bytes for core in state.cores))
    cores = {str(core.core_id): _breakdown(core) for core in state.cores}
    return {
        "neuron_runtime_used_bytes": {
            "host": host,
            "neuron_device": device,
            "usage_breakdown": {"host": _host(host), "neuroncore_memory_usage": cores},
        },
        "loaded_models": [] if not state.cores else [_model(state)],
    }


def _breakdown(core: CoreState) -> dict[str, int]:
    return {name: round(sum(core.used.get(use, 0) for use in uses)) for name, uses in GROUP.items()}


def _host(num_bytes: int) -> dict[str, int]:
    return {"application_memory": num_bytes, "constants": 0, "dma_buffers": 0, "tensors": 0}


def _model(state: ServerState) -> dict[str, Any]:
    return {
        "name": state.model,
        "uuid": "",
        "model_id": 0,
        "is_running": state.phase == "ready",
        "subgraphs": {
            f"sg_{i:02}": {
                "memory_used_bytes": {
                    "host": 0,
                    "neuron_device": round(core.used_bytes),
                    "usage_breakdown": {"host": _host(0), "neuron_device": _breakdown(core)},
                },
                "neuroncore_index": core.core_id,
                "neuron_device_index": core.chip,
            }
            for i, core in enumerate(state.cores)
        },
    }


def _hw_counters(window: Window, state: ServerState) -> dict[str, Any]:
    """Return hardware error counters, all zero: emulated memory has no errors."""
    kinds = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_uncorrected", "sram_ecc_corrected")
    chips = range(state.instance.num_chips if state.instance else 0)
    devices = [{"neuron_device_index": chip, **dict.fromkeys(kinds, 0)} for chip in chips]
    return {"period": window.seconds, "neuron_devices": devices, "error": ""}


def _instance_info(state: ServerState) -> dict[str, str]:
    """Return instance information: only the emulated type, since there is no EC2 instance."""
    places = ("instance_availability_zone", "instance_availability_zone_id", "instance_region", "subnet_id")
    info = dict.fromkeys(("instance_name", "instance_id", *places, "ami_id", "error"), "")
    return info | {"instance_type": state.instance.name if state.instance else ""}


def _hardware_info(state: ServerState) -> dict[str, Any]:
    instance = state.instance
    if instance is None:
        return {"error": f"the server is {state.phase}: it has taken no device yet"}
    chip = instance.chip
    suffix = "d" if chip.lnc == 2 else ""  # as in the guide, for two physical cores in a logical core
    return {
        "neuron_device_type": chip.name.lower(),
        "neuron_device_version": "",
        "neuroncore_version": chip.core_name.rpartition("-")[2] + suffix,
        "neuron_device_count": instance.num_chips,
        "neuron_device_memory_size": chip.memory_gib << 30,
        "neuroncore_per_device_count": chip.cores_per_chip,
        "logical_neuroncore_config": chip.lnc,
        "error": "",
    }


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
