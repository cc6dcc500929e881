"""Small layers around a vision encoder: the projection of patches, merged neighbours, and norms in float32 on the host.

A row's values depend on no other row but those that are merged with it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...checkpoint.checkpoint import Checkpoint
from ...errors import CheckpointError
from ...models.vision import Average, Connector, ConnectorStep, Join, RowLinear, RowNorm, Standardize
from .products import Products

Float32 = npt.NDArray[np.float32]
Square = tuple[int, int]  # rows and columns of a picture's grid
Step = Callable[[Float32, Square], Float32]


def load_connector(steps: Connector, checkpoint: Checkpoint, products: Products, square: int) -> Step:
    """Return the function of `steps`, with weights. Rows come in squares of that side, one after the other.

    Raises CheckpointError for missing tensors.
    """
    functions = [_step(step, checkpoint, products, square) for step in steps]

    def connect(rows: Float32, grid: Square) -> Float32:
        for function in functions:
            rows = function(rows, grid)
        return rows

    return connect


def _step(step: ConnectorStep, checkpoint: Checkpoint, products: Products, square: int) -> Step:
    match step:
        case RowLinear():
            linear = load_linear(step, checkpoint, products)
            return lambda rows, _: linear(rows)
        case RowNorm():
            norm = load_norm(step, checkpoint)
            return lambda rows, _: norm(rows)
        case Join(side=side, by_channel=by_channel):
            return lambda rows, grid: _joined(rows, grid, side, by_channel, square)
        case Standardize(factor=factor, bias=bias, scale=scale):
            by = load_tensor(checkpoint, scale) if scale else np.float32(1.0)
            shift = load_tensor(checkpoint, bias) if bias else np.float32(0.0)
            return lambda rows, _: (rows * np.float32(factor) - shift) * by
        case Average(side=side):
            return lambda rows, grid: _neighbours(rows, grid, side).mean(axis=(2, 3)).reshape(-1, rows.shape[1])


def _neighbours(rows: Float32, grid: Square, side: int) -> Float32:
    """Return rows of a grid, one after the other, as [squares down, squares across, side, side, elements]."""
    height, width = grid
    shape = -1, height // side, side, width // side, side, rows.shape[1]
    return rows.reshape(shape).transpose(0, 1, 3, 2, 4, 5).reshape(-1, width // side, side, side, rows.shape[1])


def _joined(rows: Float32, grid: Square, side: int, by_channel: bool, square: int) -> Float32:
    size = side * side * rows.shape[1]
    if square > 1:
        return rows.reshape(-1, size)  # neighbours follow one another already
    squares = _neighbours(rows, grid, side)
    return np.ascontiguousarray(np.moveaxis(squares, 4, 2) if by_channel else squares).reshape(-1, size)


def load_tensor(checkpoint: Checkpoint, name: str) -> Float32:
    """Load a tensor. Raises CheckpointError when it is missing."""
    if not checkpoint.has(name):
        raise CheckpointError("model.safetensors", "missing from the safetensors files", name)
    return checkpoint.load(name)


def load_linear(step: RowLinear, checkpoint: Checkpoint, products: Products) -> Callable[[Float32], Float32]:
    """Return the linear layer. A kernel of a convolution is a matrix of its patches' values."""
    weight = load_tensor(checkpoint, step.tensor)
    if weight.shape[1 if step.is_transposed else 0] != step.outputs:
        reason = f"has shape {list(weight.shape)}, config.json makes it {step.outputs} outputs"
        raise CheckpointError("model.safetensors", reason, step.tensor)
    matrix = weight.T if step.is_transposed else weight.reshape(len(weight), -1)
    return products.of(matrix, load_tensor(checkpoint, step.bias) if step.bias else None, step.activation)


def load_norm(step: RowNorm, checkpoint: Checkpoint) -> Callable[[Float32], Float32]:
    """Return the norm of each row."""
    weight: Float32 = np.ones(1, np.float32)
    if step.module:
        weight = load_tensor(checkpoint, f"{step.module}.weight") + np.float32(step.offset)
    bias = load_tensor(checkpoint, f"{step.module}.bias") if step.has_bias else None
    eps = np.float32(step.eps)

    def norm(rows: Float32) -> Float32:
        if bias is not None:
            rows = rows - rows.mean(axis=1, keepdims=True)
        scaled: Float32 = rows / np.sqrt((rows * rows).mean(axis=1, keepdims=True) + eps) * weight
        return scaled if bias is None else scaled + bias

    return norm
