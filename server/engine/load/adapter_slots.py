"""LoRA adapters on the cores: memory for the A and B of each slot beside every layer that may be adapted.

Slots are allocated once, at the start, so that a program's operands stay valid when adapters are loaded. A slot that no
request of a step uses may be filled while the step runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ...checkpoint.lora_adapter import LoraAdapter, Module
from ...config import LoraConfig
from ...config.formats import Dtype
from ...device.core import NeuronCore
from ...device.hbm import Buffer
from ...device.layout import LORA_RANKS, N_TILE, WEIGHT_BYTES, round_up
from ...kernels.lora import PartRecord
from ...models.linear import Linear
from ...models.spec import ModelSpec
from ...placement.adapters import AdapterBuffers, AdapterPart, AdapterShape, adapter_shapes
from ...placement.shard import ShardSpec

Float32 = npt.NDArray[np.float32]
_WORDS = len(PartRecord._fields)
_RANK, _SCALE = PartRecord._fields.index("rank"), PartRecord._fields.index("scale")


@dataclass(frozen=True, slots=True)
class LayerSlots:
    """All slots of one linear layer. A single buffer of A or B is shared by every core."""

    shape: AdapterShape
    a: tuple[Buffer, ...]
    b: tuple[Buffer, ...]
    table: Buffer  # PartRecord [slots][parts]

    @property
    def records(self) -> npt.NDArray[np.int64]:
        """The table as [slots, parts, words]."""
        whole: npt.NDArray[np.int64] = self.table.array(np.int64, -1, len(self.shape.parts), _WORDS)
        return whole


class AdapterSlots:
    """Slots for `lora.max_loras` adapters, and the buffers of a step that uses adapters."""

    def __init__(
        self, cores: Sequence[NeuronCore], spec: ModelSpec, shard: ShardSpec, dtype: Dtype, lora: LoraConfig, rows: int
    ) -> None:
        """Allocate for steps of `rows` tokens, a multiple of 16. Raises HostMemoryError."""
        self._cores, self._shard, self.dtype, self.num_slots = cores, shard, dtype, lora.max_loras
        shapes = adapter_shapes(spec, shard, lora, int(WEIGHT_BYTES[dtype]))
        self.layers = {name: self._allocate(name, shape) for name, shape in shapes.items()}
        buffers = AdapterBuffers.of(spec, shard, lora.max_lora_rank, rows)
        self.width = buffers.width
        self.shrunk = [core.allocate("adapters", "products with A", buffers.shrunk) for core in cores]
        self.product = [core.allocate("adapters", "gate and up", buffers.product) for core in cores]

    @property
    def linears(self) -> list[Linear]:
        """The layers that may be adapted."""
        return [layer.shape.shape.linear for layer in self.layers.values()]

    def fill(self, slot: int, adapter: LoraAdapter) -> None:
        """Put an adapter into an unused slot. Raises CheckpointError when a tensor cannot be read."""
        self.clear(slot)
        for layer in self.layers.values():
            for i, place in enumerate(layer.shape.parts):
                module = adapter.modules.get(place.part.module)
                if module is not None:
                    self._fill_a(layer, slot, place, adapter.array(module.a))
                    self._fill_b(layer, slot, place, adapter.array(module.b))
                    _enter(layer.records[slot, i], module, place.part.factor)

    def clear(self, slot: int) -> None:
        """Disable a slot's adapter."""
        for layer in self.layers.values():
            layer.records[slot, :, _RANK] = 0

    def _allocate(self, name: str, shape: AdapterShape) -> LayerSlots:
        num_a, num_b = shape.copies(len(self._cores))
        a = [core.allocate("adapters", f"A of {name}", self.num_slots * shape.a_bytes) for core in self._cores[:num_a]]
        b = [core.allocate("adapters", f"B of {name}", self.num_slots * shape.b_bytes) for core in self._cores[:num_b]]
        table = self._cores[0].allocate("adapters", f"ranks of {name}", self.num_slots * shape.table_bytes)
        layer = LayerSlots(shape, tuple(a), tuple(b), table)
        for slot, records in enumerate(layer.records):
            for record, part in zip(records, shape.parts, strict=True):
                offsets = slot * shape.a_bytes + part.a, slot * shape.b_bytes + part.b
                record[:] = PartRecord(0, 0, *offsets, part.column, part.first_tile, part.tile_step, part.num_tiles)
        return layer

    def _fill_a(self, layer: LayerSlots, slot: int, place: AdapterPart, a: Float32) -> None:
        """Rows [rank, k] of each core that has its own: all inputs, or the core's."""
        linear, k = layer.shape.shape.linear, layer.shape.shape.k
        for core, buffer in enumerate(layer.a):
            rows = np.zeros((round_up(len(a), LORA_RANKS), k), np.float32)
            if linear.is_row_parallel:
                unit = linear.inputs.unit_size
                for run in self._shard.runs(linear.inputs, core):
                    to, first, length = (n * unit for n in run)
                    rows[: len(a), to : to + length] = a[:, first : first + length]
            else:
                rows[: len(a), : a.shape[1]] = a
            self._write(buffer, slot * layer.shape.a_bytes + place.a, rows)

    def _fill_b(self, layer: LayerSlots, slot: int, place: AdapterPart, b: Float32) -> None:
        """Tiles [tiles][rank][16] of each core that has its own: all outputs, or the core's."""
        part, unit = place.part, place.part.outputs.unit_size
        units = np.array([part.row(i) for i in range(part.outputs.units)])[:, None]
        b = b[(units + np.arange(unit)).reshape(-1)]
        for core, buffer in enumerate(layer.b):
            columns = np.zeros((place.num_tiles * N_TILE, b.shape[1]), np.float32)
            for run in self._shard.runs(part.outputs, core):
                to, first, length = (n * unit for n in run)
                columns[place.skipped + to : place.skipped + to + length] = b[first : first + length]
            tiles = columns.reshape(place.num_tiles, N_TILE, -1).transpose(0, 2, 1)
            self._write(buffer, slot * layer.shape.b_bytes + place.b, tiles)

    def _write(self, buffer: Buffer, offset: int, values: Float32) -> None:
        cells = values.astype(ml_dtypes.bfloat16 if self.dtype == "bfloat16" else np.float32)
        raw = np.ascontiguousarray(cells).view(np.uint8).reshape(-1)
        buffer.bytes[offset : offset + raw.size] = raw


def _enter(record: npt.NDArray[np.int64], module: Module, factor: float) -> None:
    record[_SCALE] = int(np.float32(module.scale * factor).view(np.uint32))
    record[_RANK] = module.rank
