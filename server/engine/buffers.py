"""The memory a program works in: activations, the all-reduce buffer, logits and the paged KV pool. Owns sizes only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server.config import CacheConfig, ModelSpec
from server.device.core import NeuronCore
from server.device.hbm import Buffer
from server.device.kernels.attention_rows import scratch_row_bytes
from server.device.layout import K_TILE, N_TILE, round_up
from server.device.shard import ShardSpec

ATTENTION_ROWS = 64  # (token, head) rows of one attention tile; a power of two
FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step a program must hold."""

    num_tokens: int
    num_samples: int
    num_workers: int


@dataclass(frozen=True, slots=True)
class KVPool:
    """K and V of every layer on every core: K [blocks, kv_heads, head_pad, block], V [blocks, kv_heads, block, head_pad]."""

    shards: tuple[Buffer, ...]
    tensor_bytes: int  # of K, or V, of one layer on one core
    head_pad: int

    def k(self, core: int, layer: int) -> int:
        """Address of layer `layer`'s K on `core`."""
        return self.shards[core].address + 2 * layer * self.tensor_bytes

    def v(self, core: int, layer: int) -> int:
        """Address of layer `layer`'s V on `core`."""
        return self.k(core, layer) + self.tensor_bytes

    @classmethod
    def allocate(
        cls, cores: Sequence[NeuronCore], spec: ModelSpec, shard: ShardSpec, cache: CacheConfig, cell_bytes: int
    ) -> KVPool:
        """Raises DeviceMemoryError when the blocks do not fit."""
        head_pad = round_up(spec.head_dim, N_TILE)
        tensor = cache.num_blocks * cache.block_size * shard.kv_heads_per_core * head_pad * cell_bytes
        shards = tuple(core.allocate("kv", "blocks", 2 * spec.num_layers * tensor) for core in cores)
        return cls(shards, tensor, head_pad)


class ActivationBuffers:
    """Scratch of the program. What every core would hold a copy of, the host holds once, on core 0."""

    def __init__(
        self, cores: Sequence[NeuronCore], spec: ModelSpec, shard: ShardSpec, limits: StepLimits, cell_bytes: int
    ) -> None:
        """Raises DeviceMemoryError when the buffers do not fit."""
        self._rows, self._cell = round_up(limits.num_tokens, N_TILE), cell_bytes
        samples = round_up(limits.num_samples, N_TILE)
        width = round_up(spec.hidden_size, K_TILE)
        first = cores[0]
        self.partial_stride = self._rows * width * FLOAT32_BYTES
        self.hidden = first.allocate("scratchpad", "hidden", self.partial_stride)
        self.normed = first.allocate("scratchpad", "normed", self._rows * width * cell_bytes)
        self.partials = first.allocate("collectives", "all-reduce", len(cores) * self.partial_stride)
        self.sampled = first.allocate("scratchpad", "sampled", samples * width * cell_bytes)
        self.logits_width = len(cores) * shard.vocab_per_core
        self.logits = first.allocate("scratchpad", "logits", samples * self.logits_width * FLOAT32_BYTES)

        heads = shard.heads_per_core + 2 * shard.kv_heads_per_core
        self.qkv_width = round_up(heads * spec.head_dim, N_TILE)
        self.attended_width = round_up(shard.heads_per_core * spec.head_dim, K_TILE)
        self.qkv = self._sharded(cores, "qkv", self.qkv_width, FLOAT32_BYTES)
        self.attended = self._sharded(cores, "attended", self.attended_width, cell_bytes)
        self.gate_up = self._sharded(cores, "gate_up", 2 * shard.intermediate_per_core, FLOAT32_BYTES)
        self.activated = self._sharded(cores, "activated", shard.intermediate_per_core, cell_bytes)

    def _sharded(self, cores: Sequence[NeuronCore], name: str, width: int, cell_bytes: int) -> tuple[Buffer, ...]:
        size = self._rows * width * cell_bytes
        return tuple(core.allocate("scratchpad", name, size) for core in cores)

    def logits_array(self, num_rows: int) -> npt.NDArray[np.float32]:
        """The logits of the last step, [num_rows, padded vocabulary]; overwritten by the next."""
        whole: npt.NDArray[np.float32] = self.logits.array(np.float32, -1, self.logits_width)
        return whole[:num_rows]


class AttentionScratch:
    """One area for each worker, and how many query tokens a tile may have for its rows to fit."""

    def __init__(self, core: NeuronCore, shard: ShardSpec, cache: CacheConfig, head_pad: int, num_workers: int) -> None:
        group = max(end - begin for c in range(shard.tp) for begin, end in shard.q_per_kv(c))
        self.tile_tokens = max(1, ATTENTION_ROWS // group)
        rows = round_up(self.tile_tokens * group, 4)
        self.stride = round_up(rows * scratch_row_bytes(head_pad, cache.block_size), 64)
        self.address = core.allocate("scratchpad", "attention", num_workers * self.stride).address
