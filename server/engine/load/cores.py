"""The cores of the instance that one engine of a server uses."""

from __future__ import annotations

from ...config import EngineConfig
from ...device.instances import Instance
from ...device.visible_cores import take_cores


def group_cores(config: EngineConfig, device: Instance) -> tuple[int, ...]:
    """Return the cores' indices on the instance; engines of a server take the visible cores one after the other.

    Raises DeviceError when the instance has too few.
    """
    tp, group = config.tensor_parallel_size, config.data_parallel
    device.check_tp(tp)
    device.check_groups(tp, group.size)
    cores = take_cores(config.runtime_cores, device, tp, group.size)
    return cores[group.rank * tp : (group.rank + 1) * tp]
