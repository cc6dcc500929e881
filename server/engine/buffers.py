"""The memory a program works in: activations, the all-reduce buffer, logits and the paged KV pool.

Sizes come from server/placement/host_footprint.py, the same that decided whether the host can hold them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server.config import CacheConfig, KVCacheDtype
from server.device.address_map import ADDRESSES
from server.device.core import NeuronCore
from server.device.hbm import Buffer
from server.device.layout import FLOAT32_BYTES
from server.engine.rope_tables import fill_rope_tables
from server.models.spec import ModelSpec, RopeSpec
from server.placement.cache_layout import kv_block_bytes
from server.placement.footprint import ServingShape
from server.placement.host_footprint import ActivationSizes
from server.placement.matrices import Widths
from server.placement.shard import ShardSpec


@dataclass(frozen=True, slots=True)
class KVPool:
    """KV cache: every layer's K [blocks, kv_heads] of [head_pad, block] and V of [block, head_pad], on every core."""

    shards: tuple[Buffer, ...]
    tensor_bytes: int  # of K, or V, of one layer on one core

    def k(self, core: int, layer: int) -> int:
        """Address of layer `layer`'s K on `core`."""
        return self.shards[core].address + 2 * layer * self.tensor_bytes

    def v(self, core: int, layer: int) -> int:
        """Address of layer `layer`'s V on `core`."""
        return self.k(core, layer) + self.tensor_bytes

    @classmethod
    def allocate(
        cls, cores: Sequence[NeuronCore], spec: ModelSpec, shard: ShardSpec, cache: CacheConfig, kv_dtype: KVCacheDtype
    ) -> KVPool:
        """Raises HostMemoryError when the host cannot map them."""
        size = cache.num_blocks * kv_block_bytes(spec, shard, kv_dtype, cache.block_size)
        shards = tuple(core.allocate("kv", "blocks", size) for core in cores)
        tensor_bytes = size // (2 * spec.num_layers)
        for shard_bytes in (each.bytes for each in shards):  # beyond one layer's blocks are the next one's
            for i in range(2 * spec.num_layers):
                tensor = shard_bytes[i * tensor_bytes : (i + 1) * tensor_bytes]
                ADDRESSES.register(f"kv blocks, {'kv'[i % 2]} of layer {i // 2}", tensor)
        return cls(shards, tensor_bytes)


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines of one rotary embedding, each [positions, head_dim / 2]."""

    cos: Buffer
    sin: Buffer


class ConstantTables:
    """Tables that kernels read: rotary angles, and which local query heads each KV head serves."""

    def __init__(self, cores: Sequence[NeuronCore], spec: ModelSpec, shard: ShardSpec, num_positions: int) -> None:
        """Raises HostMemoryError when the host cannot map the tables."""
        shape = num_positions, spec.head_dim // 2
        self.ropes = {rope: _rope_table(cores[0], rope, shape) for rope in spec.distinct_ropes}
        self.groups = tuple(_head_groups(core, shard.q_per_kv(core.index)) for core in cores)


def _rope_table(core: NeuronCore, rope: RopeSpec | None, shape: tuple[int, int]) -> RopeTable:
    cos, sin = (core.allocate("tables", "rope", FLOAT32_BYTES * math.prod(shape)) for _ in range(2))
    fill_rope_tables(rope, *(table.array(np.float32, *shape) for table in (cos, sin)))
    return RopeTable(cos, sin)


def _head_groups(core: NeuronCore, ranges: Sequence[tuple[int, int]]) -> Buffer:
    values = np.array(ranges, np.int32)
    buffer = core.allocate("tables", "head groups", values.nbytes)
    buffer.array(np.int32, *values.shape)[:] = values
    return buffer


class ActivationBuffers:
    """Scratch of the program. Values that every core would have a copy of are there once, on core 0."""

    def __init__(self, cores: Sequence[NeuronCore], spec: ModelSpec, shard: ShardSpec, shape: ServingShape) -> None:
        """Raises HostMemoryError when the host cannot map the buffers."""
        sizes = ActivationSizes.of(spec, shard, shape)
        self.widths, self.sizes = Widths.of(spec, shard), sizes
        first = cores[0]
        self.hidden = first.allocate("activations", "hidden", sizes.hidden)
        self.normed = first.allocate("activations", "normed", sizes.normed)
        self.normed_scales = first.allocate("activations", "row scales", sizes.row_scales)
        self.sampled = first.allocate("activations", "sampled", sizes.sampled)
        self.logits = first.allocate("activations", "logits", sizes.logits)
        self.partials = first.allocate("partial_sums", "all-reduce", len(cores) * sizes.partial)
        scratch = shape.limits.num_workers * sizes.worker_scratch
        self.worker_scratch = first.allocate("workers", "scratch", scratch)
        self.partial_states = first.allocate("workers", "partial attention", sizes.attention.partials)
        self.arrivals = first.allocate("workers", "attention arrivals", sizes.attention.arrivals)
        self.logits_width = len(cores) * self.widths.vocab
        self.qkv = _on_each(cores, "qkv", sizes.qkv)
        self.queries = _on_each(cores, "queries", sizes.queries)
        self.attended = _on_each(cores, "attended", sizes.attended)
        self.attended_panels = _on_each(cores, "attended panels", sizes.attended_panels)
        self.activated = _on_each(cores, "activated", sizes.activated)
        self.activated_panels = _on_each(cores, "activated panels", sizes.activated_panels)
        self.row_scales = _on_each(cores, "row scales", sizes.row_scales)

    def logits_array(self) -> npt.NDArray[np.float32]:
        """The logits of the last step, [samples, padded vocabulary]; overwritten by the next."""
        whole: npt.NDArray[np.float32] = self.logits.array(np.float32, -1, self.logits_width)
        return whole


def _on_each(cores: Sequence[NeuronCore], name: str, num_bytes: int) -> tuple[Buffer, ...]:
    return tuple(core.allocate("activations", name, num_bytes) for core in cores)
