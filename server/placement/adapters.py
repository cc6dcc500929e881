"""Layout of LoRA adapters on the emulator's cores: geometry and bytes, no weights.

Every linear layer that all tokens go through has memory for each slot's A and B, at their largest rank. The matrix that
faces an undivided side is stored once for all cores: A of a column-parallel layer, B of a row-parallel one. The other
matrix is divided like the layer. The accelerator's own account of adapters is in core_share.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..config import LoraConfig
from ..device.layout import FLOAT32_BYTES, LORA_PART_BYTES, LORA_RANKS, N_TILE, round_up
from ..errors import DeviceError
from ..models.decoder import decoder_graph
from ..models.graph import Graph, flat_ops
from ..models.linear import Linear, WeightRows
from ..models.ops import LatentAttention
from ..models.spec import ModelSpec
from .matrices import PackedShape, Widths
from .shard import ShardSpec


def adaptable(graph: Graph) -> Iterator[Linear]:
    """Return the linear layers that adapters may change: all except experts and the output layer.

    Raises DeviceError for latent attention, whose projections take none.
    """
    ops = [op for layer in graph.layers for op in flat_ops(layer)]
    if any(isinstance(op, LatentAttention) for op in ops):
        raise DeviceError("enable_lora: a model with latent attention cannot have adapters")
    return (op for op in ops if isinstance(op, Linear))


@dataclass(frozen=True, slots=True)
class AdapterPart:
    """One module of a layer on one core: its columns, in tiles of the layer's output, and its bytes in a slot."""

    part: WeightRows
    first_tile: int
    tile_step: int  # 2 if tiles of gate and up alternate
    num_tiles: int
    skipped: int  # columns of the first tile that belong to another module
    column: int  # first column of the products with its A
    a: int  # byte offset of its A in a slot
    b: int  # byte offset of its B


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """The adapters of one linear layer on one core."""

    shape: PackedShape
    parts: tuple[AdapterPart, ...]
    rank: int  # the largest rank, in whole chunks of A's rows
    cell_bytes: int  # of A and B

    @classmethod
    def of(cls, linear: Linear, shard: ShardSpec, widths: Widths, max_rank: int, cell_bytes: int) -> AdapterShape:
        shape, rank = PackedShape.of(linear, widths), round_up(max_rank, LORA_RANKS)
        parts: list[AdapterPart] = []
        begin = b = 0
        for i, part in enumerate(linear.parts):
            columns = shard.size(part.outputs)
            first, skipped = (i, 0) if linear.is_interleaved else divmod(begin, N_TILE)
            tiles, step = -(-(skipped + columns) // N_TILE), 2 if linear.is_interleaved else 1
            parts.append(AdapterPart(part, first, step, tiles, skipped, i * rank, i * rank * shape.k * cell_bytes, b))
            begin += columns
            b += tiles * N_TILE * rank * cell_bytes
        return cls(shape, tuple(parts), rank, cell_bytes)

    @property
    def a_bytes(self) -> int:
        """Bytes of A in one slot."""
        return len(self.parts) * self.rank * self.shape.k * self.cell_bytes

    @property
    def b_bytes(self) -> int:
        """Bytes of B in one slot."""
        return sum(part.num_tiles * N_TILE for part in self.parts) * self.rank * self.cell_bytes

    @property
    def table_bytes(self) -> int:
        """Bytes of the records of one slot, which all cores read."""
        return len(self.parts) * LORA_PART_BYTES

    def copies(self, tp: int) -> tuple[int, int]:
        """Return the numbers of copies of A and of B on `tp` cores."""
        return (tp, 1) if self.shape.linear.is_row_parallel else (1, tp)


def adapter_shapes(model: ModelSpec, shard: ShardSpec, lora: LoraConfig, cell_bytes: int) -> dict[str, AdapterShape]:
    """Return the shape of every layer that adapters may change, by the name of its matrix."""
    widths = Widths.of(model, shard)
    linears = adaptable(decoder_graph(model))
    shapes = (AdapterShape.of(linear, shard, widths, lora.max_lora_rank, cell_bytes) for linear in linears)
    return {shape.shape.name: shape for shape in shapes}


@dataclass(frozen=True, slots=True)
class AdapterBuffers:
    """Bytes of the buffers that a step with adapters needs on each core in addition."""

    width: int  # elements of a row of products with A
    shrunk: int  # float32 rows of products with A
    product: int  # float32 rows of gate and up before they are multiplied

    @classmethod
    def of(cls, model: ModelSpec, shard: ShardSpec, max_rank: int, rows: int) -> AdapterBuffers:
        most_parts = max((len(linear.parts) for linear in adaptable(decoder_graph(model))), default=0)
        width = most_parts * round_up(max_rank, LORA_RANKS)
        product = 2 * rows * Widths.of(model, shard).intermediate * FLOAT32_BYTES
        return cls(width, rows * width * FLOAT32_BYTES, product)


def adapter_bytes(model: ModelSpec, shard: ShardSpec, lora: LoraConfig, cell_bytes: int, rows: int) -> int:
    """Return the bytes of all slots and of the buffers of a step, over all cores."""
    buffers, tp = AdapterBuffers.of(model, shard, lora.max_lora_rank, rows), shard.tp
    stored = sum(
        a * shape.a_bytes + b * shape.b_bytes + shape.table_bytes
        for shape in adapter_shapes(model, shard, lora, cell_bytes).values()
        for a, b in (shape.copies(tp),)
    )
    return lora.max_loras * stored + tp * (buffers.shrunk + buffers.product)
