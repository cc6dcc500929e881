"""The cores of the instance that one engine of a server uses."""

from __future__ import annotations

from ...config import EngineConfig
from ...device.instances import Instance
from ...device.visible_cores import take_cores


def group_cores(config: EngineConfig, device: Instance, stage: int = 0) -> tuple[int, ...]:
    """Return the indices of a stage's cores on the instance: engines, and stages in them, take visible ones in turn.

    Stages on other hosts are on instances of their own. Raises DeviceError when the instance has too few cores.
    """
    tp, group, stages = config.tensor_parallel_size, config.data_parallel, local_stages(config)
    device.check_tp(tp)
    device.check_groups(tp, group.size * stages)
    cores = take_cores(config.runtime_cores, device, tp, group.size * stages)
    first = (group.rank * stages + (stage if stages > 1 else 0)) * tp
    return cores[first : first + tp]


def local_stages(config: EngineConfig) -> int:
    """Return how many stages of the engine's pipeline are on one instance."""
    return 1 if config.pipeline.addresses else config.pipeline.size
