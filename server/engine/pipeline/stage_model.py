"""The part of a model that one stage loads, and the account of an engine with all its stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...config import EngineConfig
from ...errors import SettingsError
from ...host.memory import GIB
from ...link.messages import EngineInfo
from ...models.spec import ModelSpec
from ...models.stages import stage_of, why_whole
from .wire import StageReady


def stage_model(config: EngineConfig, model: ModelSpec, stage: int) -> ModelSpec:
    """Return the part of `model` that `stage` loads.

    Raises SettingsError for a model that cannot be divided, or a setting that needs all layers in one process, and
    DeviceError when there are more stages than layers.
    """
    count = config.pipeline.size
    if count == 1:
        return model
    settings = {
        "enable_lora": config.lora is not None,
        "speculative_config": config.speculation is not None,
        "kv_offloading_size": config.offload.memory_bytes > 0 or config.offload.directory is not None,
        "trace_dir": config.trace.directory is not None,
    }
    reason = why_whole(model) or next((f"{name} is set" for name, is_set in settings.items() if is_set), "")
    if reason:
        raise SettingsError(f"pipeline_parallel_size is {count}: {config.model_path} takes 1, because {reason}")
    return stage_of(model, stage, count)


def with_stages(info: EngineInfo, others: Sequence[StageReady]) -> EngineInfo:
    """Return the facts of an engine with the cores and the host memory of its other stages."""
    if not others:
        return info
    used: dict[str, int] = dict(info.host_memory)
    for each in others:
        for use, num_bytes in each.host_memory.items():
            used[use] = used.get(use, 0) + num_bytes
    notes = (
        f"stage {number}, process {each.pid}: {each.memory[0].total / GIB:.2f} GiB on each of "
        f"{', '.join(each.core_names)}"
        for number, each in enumerate(others, 2)
    )
    return replace(
        info,
        core_ids=(*info.core_ids, *(core for each in others for core in each.core_ids)),
        core_names=(*info.core_names, *(name for each in others for name in each.core_names)),
        memory=(*info.memory, *(core for each in others for core in each.memory)),
        host_memory=used,
        notes=(*info.notes, *notes),
    )
