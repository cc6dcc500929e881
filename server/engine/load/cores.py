"""The cores of the instance that one engine of a server takes."""

from __future__ import annotations

from neuronserve.server.config import EngineConfig
from neuronserve.server.device.instances import Instance
from neuronserve.server.device.visible_cores import take_cores


def group_cores(config: EngineConfig, part: Instance) -> tuple[int, ...]:
    """Indices on the instance; the engines of a server take the visible cores one after the other.

    Raises DeviceError when the part does not have them.
    """
    tp, group = config.tensor_parallel_size, config.data_parallel
    part.check_tp(tp)
    part.check_groups(tp, group.size)
    cores = take_cores(config.runtime_cores, part, tp, group.size)
    return cores[group.rank * tp : (group.rank + 1) * tp]
