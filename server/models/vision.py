"""Records of a vision encoder: patches of a picture become vectors in place of placeholder tokens. Names and numbers.

Patches are projected, get positions, and go through layers that attend to both sides. A connector, a few steps on the
rows of one picture, makes vectors of the text's size of the last states. A tap is a connector of the states after an
earlier layer, whose vectors are added to the stream of the text's first layers (DeepStack, Meng et al. 2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .layer import LayerSpec
from .names import Names

MAX_PATCHES = 16_384  # of one picture: 2,048 x 2,048 pixels in patches of 16
PRODUCT_ROWS = 512  # rows that the layers around the encoder multiply at once

PositionKind = Literal[
    "none",
    "in order",  # row by row, of pictures with as many patches
    "summed",  # of the column and of the row, in a table [2, grid_side, elements]
    "nearest",  # the row of a learned square grid that is nearest
    "interpolated",  # four rows of a learned square grid, corners aligned
]
RowActivation = Literal["identity", "gelu", "gelu_tanh", "silu", "quick_gelu"]


@dataclass(frozen=True, slots=True)
class RowNorm:
    """Norm of each row. A `bias` makes it LayerNorm, otherwise it is RMSNorm with weights of (w + offset)."""

    module: str  # "" = it has no weights
    eps: float
    has_bias: bool = False
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class RowLinear:
    """activation(row @ weight.T + bias)."""

    tensor: str  # name of the weight
    outputs: int
    bias: str = ""  # name of the bias; "" = none
    activation: RowActivation = "identity"
    is_transposed: bool = False  # stored [inputs, outputs]


@dataclass(frozen=True, slots=True)
class Join:
    """Rows of a square of `side` x `side` neighbours as one row.

    Elements are ordered by neighbour, row by row; or by channel, and then by neighbour (`by_channel`).
    """

    side: int
    by_channel: bool = False


@dataclass(frozen=True, slots=True)
class Average:
    """The mean of a square of neighbours; there are `side` squares in a row."""

    side: int


@dataclass(frozen=True, slots=True)
class Standardize:
    """(row * factor - bias) * scale; without tensors, row * factor."""

    factor: float
    bias: str = ""  # names of the tensors
    scale: str = ""


ConnectorStep = RowNorm | RowLinear | Join | Average | Standardize
Connector = tuple[ConnectorStep, ...]


@dataclass(frozen=True, slots=True)
class PatchSpec:
    """How pixels become the encoder's first stream."""

    size: int  # pixels of a side
    channels: int
    projection: RowLinear  # the kernel of a convolution, its inputs in the order of a patch's values
    frames: int = 1  # pictures that a patch spans
    positions: PositionKind = "none"
    table: str = ""  # tensor of the learned positions
    grid_side: int = 0  # of the learned positions
    norm: RowNorm | None = None  # of the first stream
    pixel_scale: tuple[float, float] = (1.0, 0.0)  # factor of values, and what is added to them then
    class_token: str = ""  # tensor of a token beside the patches of each crop, which makes no vector; "" = none
    is_class_last: bool = False  # behind the patches
    # Patches come in squares of this side, one square after the other; 1 = row by row.
    square: int = 1

    @property
    def values(self) -> int:
        """Values of a patch."""
        return self.channels * self.frames * self.size * self.size

    @property
    def num_positions(self) -> int:
        """Rows of the table of learned positions, without that of a class token."""
        return self.grid_side * (2 if self.positions == "summed" else self.grid_side)

    @property
    def num_classes(self) -> int:
        """Tokens of a crop beside its patches."""
        return int(bool(self.class_token))


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """A vision encoder and its connectors."""

    hidden_size: int
    layers: tuple[LayerSpec, ...]
    eps: float
    is_rms: bool  # norms are RMSNorm, not LayerNorm
    names: Names  # of the tensors of the layers and of the norm after them
    patch: PatchSpec
    connector: Connector
    token_id: int  # placeholder of a vector
    merge: int = 1  # patches in a row that become one vector
    taps: tuple[tuple[int, Connector], ...] = ()  # index of a layer, ascending, and the connector of its states
    ends_normed: bool = True  # a norm follows the last layer
    turns_by_turns: bool = False  # pairs of a head turn by row and column alternately (Pixtral), not by halves
    turns_by_columns: bool = False  # the first half of the pairs turns by column
    # Layers of the text in which a picture's tokens attend to all of its tokens, also those behind them.
    span_layers: Literal["none", "all", "with windows"] = "none"
    window: int = 0  # side in patches of the squares within which most layers attend; 0 = all attend to everything
    full_layers: tuple[int, ...] = ()  # layers that attend to everything nevertheless

    @property
    def _products(self) -> tuple[tuple[int, Connector], ...]:
        """Steps around the layers, each behind the size of the rows that it reads."""
        connectors = (self.connector, *(connector for _, connector in self.taps))
        return (self.patch.values, (self.patch.projection,)), *((self.hidden_size, each) for each in connectors)

    @property
    def num_weights(self) -> int:
        """Weights of the projection of patches, the learned positions and the connectors."""
        beside = (self.patch.num_positions + 2 * self.patch.num_classes) * self.hidden_size
        return beside + sum(weights for size, steps in self._products for weights, _, _ in _sizes(steps, size))

    @property
    def product_widths(self) -> tuple[int, int]:
        """Most inputs and most outputs of a product around the layers, padded."""
        sizes = [found[1:] for size, steps in self._products for found in _sizes(steps, size)]
        inputs, outputs = (max(each) for each in zip(*sizes, strict=True))
        return _padded(inputs), _padded(outputs)

    def sees_ahead(self, window: int) -> bool:
        """Return whether a picture's tokens see those behind them in layers with that window, 0 for none."""
        return self.span_layers == "all" or (self.span_layers == "with windows" and window > 0)

    @property
    def num_sections(self) -> int:
        """Vectors for each placeholder: one for the embedding, and one for each tap."""
        return 1 + len(self.taps)


def _padded(size: int, multiple: int = 64) -> int:
    return -(-size // multiple) * multiple


def _sizes(connector: Connector, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield weights, inputs and outputs of each step on rows of `size` elements."""
    for step in connector:
        weights, before = 0, size
        match step:
            case RowLinear(outputs=outputs, bias=bias):
                weights, size = (size + bool(bias)) * outputs, outputs
            case RowNorm(has_bias=has_bias):
                weights = (1 + has_bias) * size
            case Join(side=side):
                before = size = size * side * side
        yield weights, before, size
