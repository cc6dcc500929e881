"""Findings about a host, and advice. Pure: facts go in, findings come out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..errors import StartError
from ..host.memory import GIB

Level = Literal["ok", "slow", "fail"]  # slow: a server runs and could be faster; fail: it would not start
WITHOUT_DOT_PRODUCTS = frozenset({"avx512", "avx2", "portable"})  # of int8
ARM = frozenset({"aarch64", "arm64"})  # as Linux and macOS call it
LEAST_MEMORY = 3 * GIB // 2  # of the built-in model and the server's processes
FEW_CONNECTIONS = 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about one subject, and advice unless all is well."""

    subject: str
    level: Level
    fact: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class KernelCache:
    """Directory of compiled kernels, and the kernels of this version in it."""

    path: str
    num_kernels: int
    is_writable: bool


@dataclass(frozen=True, slots=True)
class Host:
    """Facts about a host."""

    machine: str  # such as x86_64
    cpu: str  # the processor's own name
    isa: str  # instruction set that kernels are compiled for
    better: Mapping[str, tuple[str, ...]]  # better instruction sets, and the features that the CPU lacks for each
    paths: Mapping[str, str]  # by format of weights: the instruction set of its products
    num_cpus: int  # that this process may run on
    cpu_quota: float | None  # CPU seconds a second that the control group allows
    threads: int  # that a server would run
    load: float  # processes that ran or waited in the last minute
    available_bytes: int
    memory_limit: int | None  # of the control group
    huge_pages: str  # the kernel's setting: always, madvise or never; empty when there is none
    max_files: int
    connections: int | str  # that a server could hold, or why it cannot serve
    address: str  # that a server would listen on
    port_problem: str | None
    versions: Mapping[str, str | None]  # by package; None: it is not installed
    cache: KernelCache

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def findings(host: Host) -> Sequence[Finding]:
    """Return the findings about a host, in the order of a start."""
    return (
        *_cpu(host),
        *_threads(host),
        *_memory(host),
        _files(host),
        _port(host),
        _versions(host),
        _cache(host),
    )


def require_healthy(found: Sequence[Finding]) -> None:
    """Raise StartError when a finding keeps a server from starting."""
    if failed := [each.subject for each in found if each.level == "fail"]:
        error = StartError(f"a server would not start here: {', '.join(failed)}")
        error.exit_code = 1
        raise error


def _cpu(host: Host) -> Iterator[Finding]:
    fact = f"{host.cpu or host.machine}: kernels for {host.isa}"
    if host.isa == "portable" and host.machine in ARM:
        missing = ", ".join(host.better.get("neon-dot", ()))
        why = f"no instruction for dot products of 8-bit integers (neon-dot needs {missing})"
        yield Finding("CPU", "slow", f"{fact}; {why}", "take a host with i8mm and bf16 (Graviton3, Apple M2 or newer)")
    elif host.isa == "portable" and host.machine != "x86_64":
        yield Finding("CPU", "slow", f"{fact}: no explicit vectors for {host.machine}", "take a host with AVX512-VNNI")
    elif host.isa in WITHOUT_DOT_PRODUCTS:
        nearest = "avx512-vnni" if host.isa == "avx512" else "avx2-vnni"
        missing = ", ".join(host.better.get(nearest, ()))
        why = f"no instruction for dot products of 8-bit integers ({nearest} needs {missing})"
        yield Finding("CPU", "slow", f"{fact}; {why}", "take a host with AVX512-VNNI, or AMX for prompts")
    else:
        yield Finding("CPU", "ok", fact)
    slow = [name for name, isa in host.paths.items() if isa == "portable"]
    best = ", ".join(sorted({isa for isa in host.paths.values() if isa != "portable"})) or "none"
    if slow:
        names = ", ".join(slow)
        yield Finding("formats", "slow", f"plain loops for {names}; {best} for the others", "choose another format")
    else:
        yield Finding("formats", "ok", f"{best} for all of {len(host.paths)}")


def _threads(host: Host) -> Iterator[Finding]:
    fact = f"{host.threads} for {host.num_cpus} CPU(s)"
    if host.cpu_quota is None:
        yield Finding("threads", "ok", f"{fact}, without a quota")
    elif host.cpu_quota == host.threads:
        yield Finding("threads", "ok", f"{fact}, by a quota of {host.cpu_quota:g}")
    else:
        stall = f"{fact}, by a quota of {host.cpu_quota:g}: they stand still at the end of each period"
        yield Finding("threads", "slow", stall, "give the control group (limits.cpu of a pod) whole CPUs")
    if host.load > host.num_cpus:
        fact = f"{host.load:.1f} processes run or wait for {host.num_cpus} CPU(s)"
        yield Finding("load", "slow", fact, "let the server have CPUs of its own (--cpu-binding)")
    else:
        yield Finding("load", "ok", f"{host.load:.1f} processes run or wait")


def _memory(host: Host) -> Iterator[Finding]:
    limit = "" if host.memory_limit is None else f", of a limit of {host.memory_limit / GIB:.1f}"
    fact = f"{host.available_bytes / GIB:.1f} GiB available{limit}"
    if host.available_bytes < LEAST_MEMORY:
        least = f"the built-in model needs about {LEAST_MEMORY / GIB:.1f} GiB"
        yield Finding("memory", "fail", fact, f"{least}: end other processes, or raise the limit")
    else:
        yield Finding("memory", "ok", fact)
    if host.huge_pages == "never":
        fact = "weights lie on pages of 4 KiB: reading them misses the TLB"
        yield Finding("huge pages", "slow", fact, "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
    elif host.huge_pages:
        yield Finding("huge pages", "ok", host.huge_pages)


def _files(host: Host) -> Finding:
    advice = "raise the hard limit (ulimit -Hn, LimitNOFILE=, nofile of the container)"
    if isinstance(host.connections, str):
        return Finding("open files", "fail", host.connections, advice)
    fact = f"{host.max_files}: {host.connections} connections at once"
    if host.connections < FEW_CONNECTIONS:
        return Finding("open files", "slow", fact, f"more clients than that get 429: {advice}")
    return Finding("open files", "ok", fact)


def _port(host: Host) -> Finding:
    if host.port_problem is None:
        return Finding("port", "ok", f"{host.address} is free")
    fact = f"{host.address}: {host.port_problem}"
    return Finding("port", "fail", fact, "choose another with --port, or see who has it: neuronserve ls")


def _versions(host: Host) -> Finding:
    if missing := [name for name, version in host.versions.items() if version is None]:
        return Finding("packages", "fail", f"not installed: {', '.join(missing)}", "install neuronserve anew")
    shown = ("python", "numpy", "numba", "transformers", "tokenizers")
    return Finding("packages", "ok", ", ".join(f"{name} {host.versions.get(name)}" for name in shown))


def _cache(host: Host) -> Finding:
    cache = host.cache
    if cache.num_kernels:
        way = "" if cache.is_writable else ", read-only"
        return Finding("kernel cache", "ok", f"{cache.num_kernels} compiled functions in {cache.path}{way}")
    if not cache.is_writable:
        advice = "name another directory with --kernel-cache-dir"
        return Finding("kernel cache", "fail", f"{cache.path} is empty and cannot be written", advice)
    fact = f"{cache.path} has none of this version: the first start compiles for a minute or more"
    return Finding("kernel cache", "slow", fact, "start once, keep the directory, or use an image, which has them")
