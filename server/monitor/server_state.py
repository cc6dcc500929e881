"""State of a server and of the instance that it emulates, read from its metrics: cores, memory, processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from ..device.catalog import instance
from ..device.instances import Instance
from ..device.ledger import core_name
from .scrape import Scrape

SECRET_FLAGS = frozenset({"--api-key", "--admin-api-key"})

# Metrics with memory by use and core: the second one is read if the server lacks the first.
MEMORY = ("neuronserve:hbm_bytes", "neuronserve:device_memory_bytes")


@dataclass(frozen=True, slots=True)
class CoreState:
    """One NeuronCore that a server has taken."""

    core_id: int  # on the instance
    name: str  # in the runtime's form
    chip: int
    engine: str  # the server's engine that has taken it
    used: Mapping[str, float]  # bytes by use
    budget: float
    capacity: float

    @property
    def used_bytes(self) -> float:
        return sum(self.used.values())


@dataclass(frozen=True, slots=True)
class ServerState:
    """One server at one moment. `instance` is None until its metrics name the device."""

    phase: str
    model: str
    version: str
    pid: int | None
    instance: Instance | None
    cores: tuple[CoreState, ...]

    @classmethod
    def of(cls, scrape: Scrape) -> ServerState:
        """Read the state from a scrape. Raises DeviceError for an instance that this catalogue does not have."""
        info = scrape.labels("neuronserve:engine_info")
        emulated = instance(info["device"]) if info else None
        pid = scrape.total("neuronserve:process_pid")
        return cls(
            phase=scrape.phase,
            model=info.get("model_name", ""),
            version=info.get("version", ""),
            pid=int(pid) or None,
            instance=emulated,
            cores=() if emulated is None else _cores(scrape, emulated),
        )


def _cores(scrape: Scrape, emulated: Instance) -> tuple[CoreState, ...]:
    memory = next((name for name in MEMORY if scrape.has(name)), MEMORY[0])
    uses: dict[tuple[int, str], dict[str, float]] = {}
    for (core, engine, use), num_bytes in scrape.by(memory, "core", "engine", "use").items():
        uses.setdefault((int(core), engine), {})[use] = num_bytes
    return tuple(
        CoreState(
            core_id=core,
            name=core_name(core, emulated.chip.cores_per_chip),
            chip=core // emulated.chip.cores_per_chip,
            engine=engine,
            used=used,
            budget=scrape.total("neuronserve:device_memory_budget_bytes", core=str(core)),
            capacity=scrape.total("neuronserve:device_memory_capacity_bytes", core=str(core)),
        )
        for (core, engine), used in sorted(uses.items())
    )


def local_process(pid: int | None, is_local: bool) -> psutil.Process | None:
    """Return the server's process; None if it is on another host or not visible."""
    if pid is not None and is_local:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            return process if process.is_running() else None
    return None


def command_of(process: psutil.Process | None) -> str:
    """Return the command line, without the secrets in it; empty if it cannot be read."""
    if process is not None:
        with suppress(psutil.Error):
            return " ".join(_without_secrets(process.cmdline()))
    return ""


def _without_secrets(words: Sequence[str]) -> list[str]:
    """Return `words` with `***` for the values of flags in `SECRET_FLAGS`, after a space or a `=`."""
    flags = [word.partition("=") for word in words]
    return [
        f"{flag}=***" if equals and flag in SECRET_FLAGS else "***" if before in SECRET_FLAGS else word
        for word, (flag, equals, _), before in zip(words, flags, ["", *words], strict=False)
    ]
