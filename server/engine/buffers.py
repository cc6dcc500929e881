"""The memory that a program works in: activations, the all-reduce buffer, logits, constant tables and the KV pool.

Sizes come from server/placement, which has also checked that the host can hold them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..config import EngineConfig
from ..device.core import HostUse, NeuronCore
from ..device.hbm import Buffer, give_back
from ..device.layout import FLOAT32_BYTES, K_MULTIPLE, round_up
from ..host.address_map import ADDRESSES
from ..models.layer import RopeSpec, TemperatureSpec
from ..models.linear import Axis, HeadCounts
from ..models.spec import ModelSpec
from ..placement.expert_sizes import INDEX_BYTES, ExpertSizes
from ..placement.footprint import ServingShape
from ..placement.host_footprint import ActivationSizes
from ..placement.kv_groups import KVPlace
from ..placement.latent_sizes import LatentSizes
from ..placement.matrices import Widths
from ..placement.shard import ShardSpec
from .rope_tables import fill_rope_tables
from .state_buffers import StateBuffers

# Operations of a token for each byte that it leaves in the cache, below which copies for a successor cost more than a
# percent of the time that they may save: a byte is copied in half a nanosecond.
LEAST_OPERATIONS = 10_000
KEPT_BYTES = 256 << 20
HANDED_BYTES = 1 << 30  # where requests are handed over; only what is used takes memory


@dataclass(frozen=True, slots=True)
class KVPool:
    """KV cache on every core: each slot's K [blocks, kv_heads] of [head_pad, block] and V of [block, head_pad].

    Layers that share a slot are in different groups, whose tables name different blocks, or keep nothing between steps.
    """

    shards: tuple[Buffer, ...]
    tensor_bytes: int  # of K, or V, of one slot on one core
    num_tensors: int  # of a slot: K and V, or one that is both
    num_blocks: int
    places: tuple[KVPlace | None, ...]  # of each layer
    beside: tuple[npt.NDArray[np.uint8], ...] = ()  # what else the blocks hold: tensors [tensors, blocks, bytes]

    @property
    def tensors(self) -> tuple[npt.NDArray[np.uint8], ...]:
        """All that blocks hold, each [tensors, blocks, bytes]."""
        own = (shard.bytes.reshape(-1, self.num_blocks, self.block_stride) for shard in self.shards)
        return (*own, *self.beside)

    @property
    def block_stride(self) -> int:
        """Bytes of one slot's K, or V, in one block."""
        return self.tensor_bytes // self.num_blocks

    def place(self, layer: int) -> KVPlace:
        """Place of layer `layer`, which has keys and values."""
        place = self.places[layer]
        assert place is not None
        return place

    def k(self, core: int, layer: int, part_bytes: int = 0) -> int:
        """Address of layer `layer`'s K on `core`. `part_bytes`: of its K in one block, where layers share slots."""
        place = self.place(layer)
        return self.shards[core].address + self.num_tensors * place.slot * self.tensor_bytes + place.part * part_bytes

    def v(self, core: int, layer: int, part_bytes: int = 0) -> int:
        """Address of layer `layer`'s V on `core`."""
        return self.k(core, layer, part_bytes) + self.tensor_bytes

    def group(self, layer: int) -> int:
        """Group of layer `layer`, whose block tables locate its keys and values."""
        return self.place(layer).group

    def give_back(self, blocks: Sequence[int]) -> int:
        """Return the pages of the free `blocks` to the host, and their bytes."""
        ordered = np.sort(np.asarray(blocks, np.int64))
        ends = np.flatnonzero(np.diff(ordered, append=self.num_blocks + 1) != 1)
        begins = np.concatenate(([0], ends[:-1] + 1))
        runs = [(int(ordered[i]), int(ordered[j]) + 1) for i, j in zip(begins, ends, strict=True)] if blocks else []
        tensors = [tensor for each in self.tensors for tensor in each]
        return sum(give_back(tensor[first:end].ravel()) for tensor in tensors for first, end in runs)

    def copy(self, source: int, target: int, count: int = 1) -> None:
        """Copy `count` blocks from `source` on to `target` on."""
        for tensors in self.tensors:
            tensors[:, target : target + count] = tensors[:, source : source + count]

    @classmethod
    def allocate(
        cls,
        cores: Sequence[NeuronCore],
        places: tuple[KVPlace | None, ...],
        num_blocks: int,
        sizes: tuple[int, int],
        use: HostUse = "kv",
    ) -> KVPool:
        """Allocate a pool. Raises HostMemoryError.

        `sizes`: bytes of all tensors of one slot in one block of a core, and the number of these tensors.
        """
        num_slots, (layer_bytes, num_tensors) = max(place.slot for place in places if place) + 1, sizes
        slot_bytes, tensor_bytes = num_blocks * layer_bytes, num_blocks * layer_bytes // num_tensors
        shards = tuple(core.allocate(use, "blocks", num_slots * slot_bytes) for core in cores)
        for shard_bytes in (each.bytes for each in shards):
            for i in range(num_tensors * num_slots):
                layers = ", ".join(str(n) for n, place in enumerate(places) if place and place.slot == i // num_tensors)
                tensor = shard_bytes[i * tensor_bytes : (i + 1) * tensor_bytes]
                ADDRESSES.register(f"kv blocks, {'kv'[i % num_tensors]} of layer {layers}", tensor)
        return cls(shards, tensor_bytes, num_tensors, num_blocks, places)


def most_kept(config: EngineConfig, num_params: int, block_bytes: int) -> int:
    """Return the bytes of KV block copies that an engine keeps for its successor or for the engines that it hands
    requests to: configured, or by their worth."""
    if config.most_kept_bytes is not None:
        return config.most_kept_bytes
    if config.data_parallel.num_prefill:
        return HANDED_BYTES
    return KEPT_BYTES if 2 * num_params * config.block_size >= LEAST_OPERATIONS * block_bytes else 0


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines of one rotary embedding, each [positions, rotary_dim / 2]."""

    cos: Buffer
    sin: Buffer
    rotary_dim: int


class ConstantTables:
    """Tables that kernels read: rotary angles, temperatures of queries, unit weights of norms without weights, and the
    local query heads that each KV head serves.
    """

    def __init__(self, cores: Sequence[NeuronCore], spec: ModelSpec, shard: ShardSpec, num_positions: int) -> None:
        """Allocate and fill the tables. Raises HostMemoryError."""
        self.ropes = {each: _rope_table(cores[0], *each, num_positions) for each in spec.rotations}
        self.temperatures = {t: _temperatures(cores[0], t, num_positions) for t in spec.temperatures}
        self.ones = {size: _ones(cores[0], size) for size in spec.unit_sizes}
        self.slopes = {each: tuple(_slopes(core, shard, *each) for core in cores) for each in spec.slopes}
        self.groups = {
            each.counts: tuple(_head_groups(core, each.q_per_kv(core.index)) for core in cores) for each in shard.heads
        }


def _rope_table(core: NeuronCore, rope: RopeSpec | None, head_dim: int, num_positions: int) -> RopeTable:
    # Without an embedding every pair turns by zero; the last element of an odd head is in no pair.
    rotary_dim = head_dim // 2 * 2 if rope is None else rope.rotary_dim(head_dim)
    shape = num_positions, rotary_dim // 2
    cos, sin = (core.allocate("tables", "rope", FLOAT32_BYTES * math.prod(shape)) for _ in range(2))
    fill_rope_tables(rope, *(table.array(np.float32, *shape) for table in (cos, sin)))
    return RopeTable(cos, sin, rotary_dim)


def _temperatures(core: NeuronCore, temperature: TemperatureSpec, num_positions: int) -> Buffer:
    """float32 [positions]."""
    buffer = core.allocate("tables", "temperatures", FLOAT32_BYTES * num_positions)
    lengths = (np.arange(num_positions, dtype=np.float64) + temperature.shift) // temperature.floor
    buffer.array(np.float32, num_positions)[:] = 1.0 + temperature.scale * np.log1p(lengths)
    return buffer


def _ones(core: NeuronCore, size: int) -> Buffer:
    padded = round_up(size, K_MULTIPLE)
    buffer = core.allocate("tables", "ones", FLOAT32_BYTES * padded)
    buffer.array(np.float32, padded)[:size] = 1.0
    return buffer


def _slopes(core: NeuronCore, shard: ShardSpec, slopes: Sequence[float], heads: HeadCounts) -> Buffer:
    """float32 [query heads of the core]."""
    slots = shard.of_heads(heads).heads_per_core
    buffer = core.allocate("tables", "slopes", FLOAT32_BYTES * slots)
    for run in shard.runs(Axis("query", len(slopes), heads=heads), core.index):
        buffer.array(np.float32, slots)[run.slot : run.slot + run.length] = slopes[run.first : run.first + run.length]
    return buffer


def _head_groups(core: NeuronCore, ranges: Sequence[tuple[int, int]]) -> Buffer:
    values = np.array(ranges, np.int32)
    buffer = core.allocate("tables", "head groups", values.nbytes)
    buffer.array(np.int32, *values.shape)[:] = values
    return buffer


class ExpertBuffers:
    """Memory of layers with experts. Inputs are on core 0, results on each core that has a part of all experts."""

    def __init__(self, cores: Sequence[NeuronCore], sizes: ExpertSizes, per_token: int) -> None:
        """Allocate the buffers. Raises HostMemoryError."""
        self.sizes = sizes

        def once(name: str, num_bytes: int) -> Buffer:
            return cores[0].allocate("activations", f"experts' {name}", num_bytes)

        def on_each(name: str, num_bytes: int) -> tuple[Buffer, ...]:
            return tuple(core.allocate("activations", f"experts' {name}", num_bytes) for core in cores[: sizes.copies])

        self.read, self.weighed = once("input", sizes.read), once("weighted inputs", sizes.weighed)
        self.logits, self.scores = once("logits", sizes.logits), once("scores", sizes.scores)
        self.chosen, self.slots, self.tokens = (
            once(name, sizes.choices) for name in ("choices", "rows of choices", "tokens of choices")
        )
        self.weights, self.gates = once("weights", sizes.weights), once("gates", sizes.gates)
        self.counts, self.groups = once("counts", sizes.counts), once("groups", sizes.groups)
        self.routed, self.routed_scales = once("panels", sizes.routed), once("row scales", sizes.row_scales)
        self.activated = on_each("activated", sizes.activated)
        self.activated_panels = on_each("activated panels", sizes.activated_panels)
        self.activated_scales = on_each("activated row scales", sizes.row_scales)
        self.outputs = on_each("outputs", sizes.outputs)
        choices = np.arange(sizes.choices // INDEX_BYTES)
        self.tokens.array(np.int64, choices.size)[:] = choices // per_token


class LatentBuffers:
    """Memory of latent attention. Latents and narrow queries, which all cores read, are on core 0."""

    def __init__(self, cores: Sequence[NeuronCore], sizes: LatentSizes) -> None:
        """Allocate the buffers. Raises HostMemoryError."""
        self.sizes = sizes
        self.queries, self.panels, self.row_scales, self.latents = (
            cores[0].allocate("activations", f"latent {name}", num_bytes)
            for name, num_bytes in (
                ("queries", sizes.queries),
                ("query panels", sizes.panels),
                ("row scales", sizes.row_scales),
                ("vectors", sizes.latents),
            )
        )
        self.rows = _on_each(cores, "latent rows", sizes.rows)


class ActivationBuffers:
    """Scratch memory of the program. Values that all cores share are stored once, on core 0."""

    def __init__(self, cores: Sequence[NeuronCore], spec: ModelSpec, shard: ShardSpec, shape: ServingShape) -> None:
        """Allocate the buffers. Raises HostMemoryError."""
        sizes = ActivationSizes.of(spec, shard, shape)
        self.widths, self.sizes = Widths.of(spec, shard), sizes
        first = cores[0]
        self.hidden = first.allocate("activations", "hidden", sizes.hidden)
        self.layer_inputs = first.allocate("activations", "inputs of layers", sizes.layer_inputs)
        self.streams = first.allocate("activations", "streams", sizes.streams)
        self.normed = first.allocate("activations", "normed", sizes.normed)
        self.normed_scales = first.allocate("activations", "row scales", sizes.row_scales)
        self.sampled = first.allocate("activations", "sampled", sizes.sampled)
        self.logits = first.allocate("activations", "logits", sizes.logits)
        self.head_squares = first.allocate("activations", "head squares", sizes.head_squares)
        self.partials = first.allocate("partial_sums", "all-reduce", len(cores) * sizes.branches * sizes.partial)
        scratch = shape.limits.num_scratches * sizes.worker_scratch
        self.worker_scratch = first.allocate("workers", "scratch", scratch)
        self.partial_states = first.allocate("workers", "partial attention", sizes.attention.partials)
        self.arrivals = first.allocate("workers", "attention arrivals", sizes.attention.arrivals)
        self.logits_width = len(cores) * self.widths.vocab
        self.qkv = _on_each(cores, "qkv", sizes.qkv)
        self.queries = _on_each(cores, "queries", sizes.queries)
        self.attended = _on_each(cores, "attended", sizes.attended)
        self.attended_panels = _on_each(cores, "attended panels", sizes.attended_panels)
        self.gates = _on_each(cores, "gate and up", sizes.gates)
        self.activated = _on_each(cores, "activated", sizes.activated)
        self.activated_panels = _on_each(cores, "activated panels", sizes.activated_panels)
        self.row_scales = _on_each(cores, "row scales", sizes.row_scales)
        self.latent = LatentBuffers(cores, sizes.latent) if sizes.latent else None
        experts = spec.experts
        self.experts = ExpertBuffers(cores, sizes.experts, experts.per_token) if sizes.experts and experts else None
        mixer = spec.state_mixer
        self.states = StateBuffers(cores, mixer, shard, sizes.states) if sizes.states and mixer else None

    def logits_array(self) -> npt.NDArray[np.float32]:
        """View of the logits of the last step, [samples, padded vocabulary]; the next step overwrites them."""
        whole: npt.NDArray[np.float32] = self.logits.array(np.float32, -1, self.logits_width)
        return whole


def _on_each(cores: Sequence[NeuronCore], name: str, num_bytes: int) -> tuple[Buffer, ...]:
    return tuple(core.allocate("activations", name, num_bytes) for core in cores)
