"""Memory that a model would take, by the checks of its loading, without its weights."""

from __future__ import annotations

from neuronserve.cli.several_models import rows_of
from neuronserve.server.config import EncodeConfig, EngineConfig
from neuronserve.server.engine.encode.loading import EncoderLoading
from neuronserve.server.engine.load.loading import ModelLoading
from neuronserve.server.engine.serving import encode_config, is_pooling
from neuronserve.server.host.memory import GIB, host_kv_blocks
from neuronserve.server.models.heads import CLASSIFIES
from neuronserve.server.placement.fit import budget_bytes
from neuronserve.server.placement.shared_cores import Account

PROCESSES_BYTES = GIB  # of a server's processes, beside the emulated accelerator's memory


def account_of(config: EngineConfig) -> Account:
    """Return the account of the model of `config`. Raises StartError where it cannot be loaded."""
    return _Encoder(encode_config(config)).account() if is_pooling(config) else _Generator(config).account()


def _say_nothing(_: str) -> None:
    """Ignore progress: the model's own process reports it."""


class _Generator(ModelLoading):
    """Loading that ends with the account."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config, _say_nothing)

    def account(self) -> Account:
        """KV blocks are for max_num_seqs sequences of the full length, as far as device and host have room."""
        config, footprint, host = self._config, self._footprint, self._host
        device = footprint.max_blocks(budget_bytes(self._instance, config.device_memory_utilization))
        fixed = sum(host.fixed.values()) + config.offload.memory_bytes
        wanted = config.max_num_seqs * (footprint.min_blocks - 1) + 1
        most = min(device, host_kv_blocks(host.kv_block, self._host_bytes(0) - fixed), wanted)
        blocks = self._overridden(device) if config.num_blocks_override is not None else max(most, footprint.min_blocks)
        uses = [footprint.of_core(core, blocks) for core in range(config.tensor_parallel_size)]
        rows = rows_of(self._max_model_len, "generate", sum(each["weights"] for each in uses))
        cores = tuple(sum(each.values()) for each in uses)
        return Account(cores, fixed + blocks * host.kv_block + PROCESSES_BYTES, blocks, rows)


class _Encoder(EncoderLoading):
    """Loading that ends with the account."""

    def __init__(self, config: EncodeConfig) -> None:
        super().__init__(config, _say_nothing)

    def account(self) -> Account:
        """Every core has the same entries."""
        lines, tp = self._core_lines, self._shard.tp
        weights = tp * sum(line.num_bytes for line in lines if line.use == "weights")
        rows = rows_of(
            self._max_length, "classify" if self._spec.architecture.endswith(CLASSIFIES) else "embed", weights
        )
        cores = (sum(line.num_bytes for line in lines),) * tp
        return Account(cores, self.host_bytes + PROCESSES_BYTES, 0, rows)
