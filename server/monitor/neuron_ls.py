"""`neuronserve ls`: the devices of the emulated instance and the processes that use them, in the form of neuron-ls.

JSON fields are those of `neuron-ls --json-output` (SDK tools/neuron-sys-tools/neuron-ls.rst). An emulated device is on
no PCI bus, so `bdf`, `cpu_affinity` and `numa_node` are empty.
"""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from ..device.catalog import instance
from ..device.instances import Instance
from ..device.topology import neighbours
from ..host.memory import GIB
from .scrape import Endpoint
from .server_state import ServerState, command_of, local_process


def run_ls(endpoint: Endpoint, device: str | None, as_json: bool) -> None:
    """Print the chips of instance `device`, or of the instance that the server at `endpoint` emulates.

    Raises Unreachable, or DeviceError for an instance that this catalogue does not have.
    """
    state = None if device else ServerState.of(endpoint.scrape())
    found = instance(device or "") if state is None else state.instance
    devices = list_devices(found, state, endpoint.is_local) if found else []
    if as_json:
        print(json.dumps(devices, indent=4))
    elif found is None:
        print(f"the server at {endpoint.url} is {state.phase if state else ''}: it has taken no device yet")
    else:
        console = Console()
        console.print(_table(found, devices))
        for process in [each for device in devices for each in device["neuron_processes"]][:1]:  # of one server
            console.print(f"{process['pid']}: {process['command']}", soft_wrap=True, highlight=False, markup=False)


def list_devices(emulated: Instance, state: ServerState | None, is_local: bool) -> list[dict[str, Any]]:
    """Return one entry for each chip, with neuron-ls's fields."""
    per_chip = emulated.chip.cores_per_chip
    used = {} if state is None else {core.chip: state for core in state.cores}
    return [
        {
            "neuron_device": chip,
            "bdf": "",
            "cpu_affinity": "",
            "numa_node": "",
            "connected_to": list(neighbours(emulated, chip)),
            "nc_count": per_chip,
            "logical_neuroncore_config": emulated.chip.lnc,
            "memory_size": emulated.chip.memory_gib * GIB,
            "neuroncore_ids": list(range(chip * per_chip, (chip + 1) * per_chip)),
            "neuron_processes": [_process(used[chip], chip, is_local)] if chip in used else [],
        }
        for chip in range(emulated.num_chips)
    ]


def _process(state: ServerState, chip: int, is_local: bool) -> dict[str, Any]:
    return {
        "pid": state.pid,
        "command": command_of(local_process(state.pid, is_local)),
        "neuron_runtime_version": f"neuronserve {state.version}",
        "neuroncore_ids": [core.core_id for core in state.cores if core.chip == chip],
    }


def _table(emulated: Instance, devices: list[dict[str, Any]]) -> Table:
    title = f"instance-type: {emulated.name} (emulated)\nlogical-neuroncore-config: {emulated.chip.lnc}"
    table = Table(title=title, title_justify="left")
    for column in ("NEURON\nDEVICE", "NEURON\nCORES", "NEURON\nCORE IDS", "NEURON\nMEMORY", "CONNECTED\nDEVICES"):
        table.add_column(column)
    table.add_column("PID")
    table.add_column("CORES\nIN USE")
    for device in devices:
        ids, processes = device["neuroncore_ids"], device["neuron_processes"]
        process = processes[0] if processes else {"pid": None, "neuroncore_ids": []}
        table.add_row(
            str(device["neuron_device"]),
            str(device["nc_count"]),
            f"{ids[0]}-{ids[-1]}" if len(ids) > 1 else str(ids[0]),
            f"{device['memory_size'] // GIB} GiB",
            _connected(device["connected_to"]),
            "" if process["pid"] is None else str(process["pid"]),
            ", ".join(map(str, process["neuroncore_ids"])),
        )
    return table


def _connected(chips: list[int]) -> str:
    return ", ".join(map(str, chips)) if len(chips) <= 6 else f"all ({len(chips)})"
