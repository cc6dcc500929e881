"""CPU binding: the CPU of the host that each worker thread stays on.

The default is no binding: the kernel can move a thread off a busy CPU, and servers that share a host would all choose
the same CPUs. Binding helps on a host with one server. macOS cannot bind threads and reports no affinity.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import SettingsError

NONE, AUTO = "none", "auto"
CAN_BIND = hasattr(os, "sched_setaffinity")


def choose_cpus(binding: str, num_threads: int, root: Path = Path("/"), can_bind: bool = CAN_BIND) -> tuple[int, ...]:
    """Return a CPU for each of `num_threads`, in order; () when threads are not bound.

    `binding` is none, auto (the first CPU of each physical core, then the others) or a list such as 0-3,8. `root` is
    the root of the file system that holds /sys. Raises SettingsError for a malformed list, for too few CPUs, or on a
    system that cannot bind threads.
    """
    if binding == NONE:
        return ()
    if not can_bind:
        raise SettingsError(f"cpu_binding is {binding}: this system cannot bind threads to CPUs")
    allowed = allowed_cpus()
    cpus = _by_core(sorted(allowed), root) if binding == AUTO else _listed(binding)
    if strange := [cpu for cpu in cpus if cpu not in allowed]:
        raise SettingsError(f"cpu_binding is {binding}: this process may not use CPU {strange[0]}")
    if len(cpus) < num_threads:
        raise SettingsError(
            f"cpu_binding is {binding}: {len(cpus)} CPU(s) for {num_threads} host threads (cpu_threads)"
        )
    return tuple(cpus[:num_threads])


def allowed_cpus() -> set[int]:
    """Return the CPUs that this process may use; all CPUs on a system without affinity (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        allowed: set[int] = os.sched_getaffinity(0)
        return allowed
    return set(range(os.cpu_count() or 1))


def _listed(binding: str) -> list[int]:
    """Return the CPUs of a list in the kernel's form, each once."""
    cpus: list[int] = []
    for part in binding.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not (last.isdecimal() and int(first) <= int(last) < 1 << 16)):
            raise SettingsError(f"cpu_binding is {binding!r}: it is none, auto, or CPUs such as 0-3,8")
        cpus += range(int(first), int(last or first) + 1)
    if len(set(cpus)) < len(cpus):
        raise SettingsError(f"cpu_binding is {binding}: it names a CPU twice")
    return cpus


def _by_core(cpus: list[int], root: Path) -> list[int]:
    """Order CPUs so that the first CPU of each physical core comes before the second CPU of any.

    Cores of a NUMA node follow each other, so that few threads, or the parts of several engines, stay on one node.
    """
    taken: dict[str, int] = {}
    index: dict[int, int] = {}  # of a CPU within its core
    for cpu in cpus:
        try:
            core = (root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            core = str(cpu)  # unknown: assume a core of its own
        index[cpu] = taken[core] = taken.get(core, -1) + 1
    nodes = _nodes(root)
    return sorted(cpus, key=lambda cpu: (index[cpu], nodes.get(cpu, 0), cpu))


def _nodes(root: Path) -> dict[int, int]:
    """Return the NUMA node of each CPU, as far as the host says. A node without CPUs has memory alone."""
    lists = {
        int(file.parent.name.removeprefix("node")): file.read_text().strip()
        for file in root.glob("sys/devices/system/node/node[0-9]*/cpulist")
    }
    return {cpu: node for node, text in lists.items() if text for cpu in _listed(text)}
