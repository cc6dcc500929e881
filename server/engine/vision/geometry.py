"""Places of the patches of a picture: their order, learned positions, windows and rotations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...models.vision import PatchSpec, VisionSpec

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]
Square = tuple[int, int]
Array = npt.NDArray[Any]


def places(grid: Square, square: int) -> Int64:
    """Return row and column of each patch, [patches, 2], where patches come in squares of that side."""
    height, width = grid
    both = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), axis=-1)
    return both.reshape(height // square, square, width // square, square, 2).swapaxes(1, 2).reshape(-1, 2)


def positions(patch: PatchSpec, table: Float32, grid: Square) -> Float32:
    """Return the learned position of each patch, [patches, hidden], from a table of a square grid."""
    at, side = places(grid, patch.square), patch.grid_side
    if patch.positions == "in order":
        return table
    if patch.positions == "summed":
        summed: Float32 = table[0, at[:, 1]] + table[1, at[:, 0]]
        return summed
    if patch.positions == "nearest":
        rows, columns = (_nearest(count, side)[at[:, axis]] for axis, count in enumerate(grid))
        nearest: Float32 = table[rows * side + columns]
        return nearest
    taps = [_corners(count, side) for count in grid]
    result = np.zeros((len(at), table.shape[1]), np.float32)
    for row, row_weight in taps[0]:
        for column, column_weight in taps[1]:
            index = row[at[:, 0]] * side + column[at[:, 1]]
            result += table[index] * (row_weight[at[:, 0]] * column_weight[at[:, 1]])[:, None]
    return result


def _nearest(count: int, side: int) -> Int64:
    """Return the row of a grid of `side` for each of `count` points.

    A point on an edge belongs to either side by its rounding in float32, as in training.
    """
    edges = (np.arange(1, side) * (1 / side)).astype(np.float32)
    points = np.arange(count, dtype=np.float32) * (np.float32(1) / np.float32(count))
    return np.searchsorted(edges, points, "right").astype(np.int64)


def _corners(count: int, side: int) -> tuple[tuple[Int64, Float32], tuple[Int64, Float32]]:
    """Return the lower and the upper neighbour of `count` points between the corners of a grid, with their weights."""
    exact = np.linspace(0, side - 1, count, dtype=np.float32)
    low = exact.astype(np.int64)
    share = exact - low.astype(np.float32)
    return (low, 1 - share), (np.minimum(low + 1, side - 1), share)


def angles(vision: VisionSpec, grid: Square) -> npt.NDArray[np.float64] | None:
    """Return the angle of each pair of a head, [patches, pairs], by row and column; None without rotations."""
    attention = vision.layers[0].attention
    if attention.rope is None:
        return None
    # Places count from 1 behind a class token, which does not turn.
    at, half = places(grid, vision.patch.square) + float(vision.patch.num_classes), attention.head_dim // 2
    frequencies = attention.rope.theta ** -(np.arange(0, half, 2) / half)
    both = frequencies, frequencies
    if vision.turns_by_turns:
        every = attention.rope.theta ** -(np.arange(half) / half)
        both = every[0::2], every[1::2]
    axes = (1, 0) if vision.turns_by_columns else (0, 1)
    turned = np.concatenate([np.outer(at[:, axis], each) for axis, each in zip(axes, both, strict=True)], axis=1)
    return with_class(turned, vision.patch, np.zeros((1, half))) if vision.patch.class_token else turned


def with_class(rows: Array, patch: PatchSpec, token: Array) -> Array:
    """Return the rows of one crop's patches with that of its class token, [1, elements]."""
    return np.concatenate([rows, token] if patch.is_class_last else [token, rows])


def without_class(rows: Float32, patch: PatchSpec, per_crop: int) -> Float32:
    """Return the rows of crops, `per_crop` each, without those of class tokens."""
    if not patch.class_token:
        return rows
    crops = rows.reshape(-1, per_crop, rows.shape[1])
    return (crops[:, :-1] if patch.is_class_last else crops[:, 1:]).reshape(-1, rows.shape[1])


def windows(vision: VisionSpec, grid: Square) -> tuple[Int64, list[int]]:
    """Return the order of patches in which windows follow one another, and the number of patches of each.

    A window is a square of patches; at the right and lower edges it is smaller.
    """
    at, across = places(grid, vision.patch.square) // vision.window, -(-grid[1] // vision.window)
    window = at[:, 0] * across + at[:, 1]
    order = np.argsort(window, kind="stable")
    lengths: list[int] = np.bincount(window).tolist()
    return order, lengths
