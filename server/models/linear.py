"""Linear layers: the axes that they go from and to, and the tensors of a checkpoint that they take.

Numbers and names only: no bytes, no cores, no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

RowChoice = Literal["positions", "token_types", "tasks"]  # of a row of a table; tasks: all tokens have the first
AxisName = Literal["hidden", "query", "kv", "ffn", "vocab", "experts", "rows"]


class HeadCounts(NamedTuple):
    """Query heads of a layer, and the KV heads that they share. Layers of one model may differ in them."""

    query: int
    kv: int


NO_HEADS = HeadCounts(0, 0)


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension: `units` of `unit_size` elements that are never divided."""

    name: AxisName
    units: int  # heads for query and kv, elements otherwise
    unit_size: int = 1
    is_of_expert: bool = False  # inside one expert, which expert parallelism leaves whole
    heads: HeadCounts = NO_HEADS  # of the layer, for query and kv: together they decide which core has which

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.units * self.unit_size

    @property
    def is_split(self) -> bool:
        """True when tensor parallelism divides the axis among the cores."""
        return self.name in ("query", "kv", "ffn", "vocab")


@dataclass(frozen=True, slots=True)
class Vector:
    """A tensor of one dimension. A core holds its units of `axis`, or the whole tensor where there is no axis."""

    tensor: str
    size: int
    axis: Axis | None = None
    rows: int = 0  # stored as [rows, size / rows]; 0 = with one dimension

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the checkpoint."""
        return (self.rows, self.size // self.rows) if self.rows else (self.size,)


@dataclass(frozen=True, slots=True)
class Channels(Vector):
    """Weights of a convolution of each channel, [channels, 1, taps], or its biases where `taps` is 0.

    The channels are those of several axes. A core has [taps, channels] of its units, one axis after the other.
    """

    parts: tuple[Axis, ...] = ()
    firsts: tuple[int, ...] = ()  # channel of the file at which each part begins
    taps: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the checkpoint."""
        return (self.size, 1, self.taps) if self.taps else (self.size,)


@dataclass(frozen=True, slots=True)
class WeightRows:
    """Rows of a module's weight, [outputs, inputs], and of its bias, from `first_row` on.

    The rows follow one another, unless units of several modules alternate: then units are `unit_stride` rows apart.
    """

    module: str
    outputs: Axis
    first_row: int = 0
    unit_stride: int = 0  # 0 = the size of a unit
    units_per_stride: int = 1  # units that follow one another in each stride
    factor: float = 1.0  # of the weights and biases
    is_transposed: bool = False  # the weight is stored [inputs, outputs]
    tensor: str | None = None  # name of the weight, where the module has none of its own
    lacks_bias: bool = False  # though other parts of the layer have one

    def row(self, unit: int) -> int:
        """Return the first row of a unit."""
        turn, place = divmod(unit, self.units_per_stride)
        size = self.outputs.unit_size
        return self.first_row + turn * (self.unit_stride or self.units_per_stride * size) + place * size

    @property
    def weight(self) -> str:
        """Name of the weight's tensor."""
        return self.tensor or f"{self.module}.weight"

    @property
    def bias(self) -> str:
        """Name of the bias's tensor."""
        return f"{self.module}.bias"


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix product. The outputs of its parts follow one another."""

    name: str  # qkv, o, gate_up, down, lm_head ...
    parts: tuple[WeightRows, ...]
    inputs: Axis
    has_bias: bool = False
    is_table: bool = False  # rows without quantization, which a kernel of their own reads
    first_column: int = 0  # of the tensor's columns that this layer takes, where it shares the tensor with another
    row_length: int = 0  # columns of the shared tensor; 0 = the inputs

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules in the checkpoint."""
        return tuple(part.module for part in self.parts)

    @property
    def is_interleaved(self) -> bool:
        """True when gate and up are computed together and then multiplied with each other."""
        return len(self.parts) == 2 and all(part.outputs.name == "ffn" for part in self.parts)

    @property
    def is_of_expert(self) -> bool:
        """True for a layer of an expert."""
        return self.inputs.is_of_expert or self.parts[0].outputs.is_of_expert

    @property
    def is_router(self) -> bool:
        """True when the outputs are logits of experts."""
        return self.parts[0].outputs.name == "experts"

    @property
    def is_row_parallel(self) -> bool:
        """True when the inputs are split, so that each core has a partial sum of all outputs."""
        return self.inputs.is_split

    @property
    def num_weights(self) -> int:
        """Number of weights without the bias."""
        return sum(part.outputs.size for part in self.parts) * self.inputs.size
