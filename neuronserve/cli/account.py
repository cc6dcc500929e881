"""Memory that a model would take, by the checks of its loading, without its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuronserve.cli.several_models import rows_of
from neuronserve.server.device.catalog import instance
from neuronserve.server.host.memory import GIB, available_bytes, host_kv_blocks
from neuronserve.server.models.heads import CLASSIFIES
from neuronserve.server.placement.fit import budget_bytes
from neuronserve.server.placement.shared_cores import Account

if TYPE_CHECKING:
    from neuronserve.server.config import EncodeConfig, EngineConfig

PROCESSES_BYTES = GIB  # of a server's processes, beside the emulated accelerator's memory


def account_of(config: EngineConfig) -> Account:
    """Return the account of the model of `config`. Raises StartError where it cannot be loaded."""
    from neuronserve.server.engine.serving import is_pooling

    return _of_encoder(config) if is_pooling(config) else _of_generator(config)


def _of_generator(config: EngineConfig) -> Account:
    """Return the account with KV blocks for max_num_seqs full sequences, as far as device and host have room."""
    from neuronserve.server.engine.load.loading import ModelLoading

    loading = ModelLoading(config, _say_nothing)
    footprint, host, share = loading.footprint, loading.host, config.data_parallel.host_memory_bytes
    device = footprint.max_blocks(budget_bytes(instance(config.device), config.device_memory_utilization))
    fixed = sum(host.fixed.values()) + config.offload.memory_bytes
    left = min(available_bytes(), share or available_bytes()) - fixed
    wanted = config.max_num_seqs * (footprint.min_blocks - 1) + 1
    most = min(device, host_kv_blocks(host.kv_block, left), wanted)
    blocks = max(most, footprint.min_blocks)
    if config.num_blocks_override is not None:
        blocks = loading.overridden(device)
    uses = [footprint.of_core(core, blocks) for core in range(config.tensor_parallel_size)]
    rows = rows_of(loading.max_model_len, "generate", sum(each["weights"] for each in uses))
    cores = tuple(sum(each.values()) for each in uses)
    return Account(cores, fixed + blocks * host.kv_block + PROCESSES_BYTES, blocks, rows)


def _of_encoder(config: EncodeConfig) -> Account:
    from neuronserve.server.engine.encode.loading import EncoderLoading

    loading, tp = EncoderLoading(config, _say_nothing), config.tensor_parallel_size
    lines = loading.core_lines
    weights = tp * sum(line.num_bytes for line in lines if line.use == "weights")
    task = "classify" if loading.spec.architecture.endswith(CLASSIFIES) else "embed"
    cores = (sum(line.num_bytes for line in lines),) * tp
    return Account(cores, loading.host_bytes + PROCESSES_BYTES, 0, rows_of(loading.max_length, task, weights))


def _say_nothing(_: str) -> None:
    """Ignore progress: the model's own process reports it."""
