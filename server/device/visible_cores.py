"""NeuronCores that a process may take, by the two environment variables of the real runtime and with its refusals.

NEURON_RT_VISIBLE_CORES names them ("3", "0-3", "0,2,4-5") and beats NEURON_RT_NUM_CORES, a count (0 or unset: all).
Sources: SDK configuration-guide.rst and nrt_status.rst (github.com/aws-neuron/aws-neuron-sdk at 81ce03ae).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..config import RuntimeCores
from ..errors import DeviceError
from .instances import Instance

_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_COUNT = re.compile(r"[0-9]{1,6}")


def visible_cores(requested: RuntimeCores, instance: Instance) -> tuple[int, ...]:
    """Return the indices of the cores that this process may take, in the order in which it takes them.

    Raises DeviceError: NRT_INVALID (2) for a malformed list or number, NRT_FAILURE (1) for cores that the
    instance does not have.
    """
    if requested.visible is not None:
        cores = _parse(requested.visible)
        _require(cores, instance, f"NEURON_RT_VISIBLE_CORES={requested.visible}")
        return cores
    count = _count(requested.count) or instance.num_cores
    _require(tuple(range(count)), instance, f"NEURON_RT_NUM_CORES={requested.count}")
    return tuple(range(count))


def take_cores(requested: RuntimeCores, instance: Instance, tp: int, dp: int = 1) -> tuple[int, ...]:
    """Return the first visible cores, `tp` for each of `dp` groups. Raises DeviceError, also for too few cores."""
    cores, count = visible_cores(requested, instance), tp * dp
    if count > len(cores):
        groups = f", data_parallel_size is {dp}" if dp > 1 else ""
        name = "NEURON_RT_NUM_CORES" if requested.visible is None else "NEURON_RT_VISIBLE_CORES"
        value = requested.count if requested.visible is None else requested.visible
        raise DeviceError(
            f"NRT_LOAD_NOT_ENOUGH_NC (9): tensor_parallel_size is {tp}{groups} and {name} is {value}: this needs "
            f"{count} NeuronCores, this process may take {len(cores)} of the {instance.num_cores} of {instance.name}"
        )
    return cores[:count]


def core_ranges(core_ids: Sequence[int]) -> str:
    """Return core ids as ranges, such as 0-3 or 0, 2, 4-5."""
    runs: list[list[int]] = []
    for core in core_ids:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _parse(text: str) -> tuple[int, ...]:
    cores: list[int] = []
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise _invalid("NEURON_RT_VISIBLE_CORES", text, "a list of cores and ranges such as 0-3 or 0,2,4-5")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise _invalid("NEURON_RT_VISIBLE_CORES", text, f"ascending, unlike {part.strip()}")
        cores += range(first, last + 1)
    if len(set(cores)) < len(cores):
        raise _invalid("NEURON_RT_VISIBLE_CORES", text, "without repetition")
    return tuple(cores)


def _count(text: str | None) -> int:
    if text is None:
        return 0
    if not _COUNT.fullmatch(text.strip()):
        raise _invalid("NEURON_RT_NUM_CORES", text, "a whole number, 0 for all")
    return int(text)


def _invalid(name: str, value: str, must: str) -> DeviceError:
    return DeviceError(f"NRT_INVALID (2): {name} is {value[:80]!r}: it must be {must}")


def _require(cores: tuple[int, ...], instance: Instance, variable: str) -> None:
    """Raise DeviceError in the real runtime's words, so that a search for it finds the same advice."""
    available = sum(core < instance.num_cores for core in cores)
    if available < len(cores):
        raise DeviceError(
            "NRT_FAILURE (1): nrt_allocate_neuron_cores: Logical Neuron Core(s) not available - "
            f"Requested:{len(cores)} Available:{available} "
            f"({variable}; {instance.name} has cores 0-{instance.num_cores - 1})"
        )
