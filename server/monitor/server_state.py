"""State of a server and of the device it emulates (part, cores, memory, processes), read out of its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from neuronserve.server.device.catalog import instance
from neuronserve.server.device.instances import Instance
from neuronserve.server.device.ledger import core_name
from neuronserve.server.monitor.scrape import Scrape

SECRET_FLAGS = frozenset({"--api-key", "--admin-api-key"})

# Memory by use and core: the second name is read where the first is not there.
MEMORY = ("neuronserve:hbm_bytes", "neuronserve:device_memory_bytes")


@dataclass(frozen=True, slots=True)
class CoreState:
    """One NeuronCore that a server has taken."""

    core_id: int  # on the instance
    name: str  # as the runtime names it
    chip: int
    engine: str  # which of the server's engines has it
    used: Mapping[str, float]  # bytes by use
    budget: float
    capacity: float

    @property
    def used_bytes(self) -> float:
        return sum(self.used.values())


@dataclass(frozen=True, slots=True)
class ServerState:
    """One server at one moment. `part` is None while it loads, when its metrics do not name the device yet."""

    phase: str
    model: str
    version: str
    pid: int | None
    part: Instance | None
    cores: tuple[CoreState, ...]

    @classmethod
    def of(cls, scrape: Scrape) -> ServerState:
        """Read the state out of a scrape. Raises DeviceError for a part that this catalogue does not have."""
        info = scrape.labels("neuronserve:engine_info")
        part = instance(info["device"]) if info else None
        pid = scrape.total("neuronserve:process_pid")
        return cls(
            phase=scrape.phase,
            model=info.get("model_name", ""),
            version=info.get("version", ""),
            pid=int(pid) or None,
            part=part,
            cores=() if part is None else _cores(scrape, part),
        )


def _cores(scrape: Scrape, part: Instance) -> tuple[CoreState, ...]:
    memory = next((name for name in MEMORY if scrape.has(name)), MEMORY[0])
    uses: dict[tuple[int, str], dict[str, float]] = {}
    for (core, engine, use), num_bytes in scrape.by(memory, "core", "engine", "use").items():
        uses.setdefault((int(core), engine), {})[use] = num_bytes
    return tuple(
        CoreState(
            core_id=core,
            name=core_name(core, part.chip.cores_per_chip),
            chip=core // part.chip.cores_per_chip,
            engine=engine,
            used=used,
            budget=scrape.total("neuronserve:device_memory_budget_bytes", core=str(core)),
            capacity=scrape.total("neuronserve:device_memory_capacity_bytes", core=str(core)),
        )
        for (core, engine), used in sorted(uses.items())
    )


def local_process(pid: int | None, is_local: bool) -> psutil.Process | None:
    """The server's process; None where it is on another host or not visible."""
    if pid is not None and is_local:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            return process if process.is_running() else None
    return None


def command_of(process: psutil.Process | None) -> str:
    """The command line, without the secrets in it; empty where it cannot be read."""
    if process is not None:
        with suppress(psutil.Error):
            return " ".join(_without_secrets(process.cmdline()))
    return ""


def _without_secrets(words: Sequence[str]) -> list[str]:
    """`words` with `***` for the value of each flag in `SECRET_FLAGS`, which stands behind it or behind a `=`."""
    flags = [word.partition("=") for word in words]
    return [
        f"{flag}=***" if equals and flag in SECRET_FLAGS else "***" if before in SECRET_FLAGS else word
        for word, (flag, equals, _), before in zip(words, flags, ["", *words], strict=False)
    ]
