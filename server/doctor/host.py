"""Facts about this host, as a server that starts now would find them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import socket
from pathlib import Path
from typing import get_args

from .. import __version__
from ..config.formats import Dtype, Quantization, WeightFormat
from ..errors import StartError
from ..host.affinity import allowed_cpus
from ..host.cpu_quota import cpu_quota, host_threads
from ..host.isa import TARGETS
from ..host.memory import available_bytes, limit_bytes
from ..host.open_files import max_connections, raise_open_files
from ..kernels.dispatch import host_isas, linear_kernels
from ..kernels.isa import target
from ..kernels.isa.cache import PREBUILT, source_hash
from .findings import Host, KernelCache

FORMATS: tuple[WeightFormat, ...] = (*get_args(Dtype), *get_args(Quantization))
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def this_host(address: str, port: int, kernel_cache: str) -> Host:
    """Return the facts for a server that would listen on `address` and `port` and keep kernels in `kernel_cache`."""
    features, isa = target.host_features(), host_isas()[0]
    beyond = [each for each in TARGETS if each.lacks(features)]
    connections: int | str
    raise_open_files()
    try:
        connections = max_connections(1)
    except StartError as error:
        connections = str(error)
    return Host(
        machine=platform.machine(),
        cpu=_cpu_name(),
        isa=isa,
        better={each.isa: each.lacks(features) for each in beyond},
        paths={name: linear_kernels(name).isa for name in FORMATS},
        num_cpus=len(allowed_cpus()),
        cpu_quota=cpu_quota(),
        threads=host_threads(),
        load=os.getloadavg()[0],
        available_bytes=available_bytes(),
        memory_limit=limit_bytes(),
        huge_pages=_huge_pages(),
        max_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        connections=connections,
        address=f"{address}:{port}",
        port_problem=_port_problem(address, port),
        versions=_versions(),
        cache=_cache(Path(kernel_cache)),
    )


def _cpu_name() -> str:
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        return ""
    return found[1] if found else ""


def _huge_pages() -> str:
    """Return the kernel's setting, the word in brackets; empty when there is none."""
    try:
        found = re.search(r"\[(\w+)\]", HUGE_PAGES.read_text())
    except OSError:
        return ""
    return found[1] if found else ""


def _port_problem(address: str, port: int) -> str | None:
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((address, port), family=family).close()
    except OSError as error:
        return str(error.strerror)
    return None


def _versions() -> dict[str, str | None]:
    """Versions of Python, of this package, and of every package that it requires without an extra."""
    try:
        required = importlib.metadata.requires("neuronserve") or []
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        required = ["numpy", "numba", "transformers", "tokenizers"]
    names = [re.split(r"[^\w.-]", each, maxsplit=1)[0] for each in required if "extra ==" not in each]
    return {"python": platform.python_version(), "neuronserve": __version__} | {name: _version(name) for name in names}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cache(directory: Path) -> KernelCache:
    """Count the kernels in a directory; a new one begins with the kernels that were installed with the package."""
    path = directory / source_hash()
    kernels = path if path.is_dir() else PREBUILT / path.name
    above = next(each for each in (path, *path.parents) if each.exists())
    return KernelCache(str(directory), sum(1 for _ in kernels.rglob("*.nbi")), os.access(above, os.W_OK))
