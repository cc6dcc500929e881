"""Checks of pictures before they are encoded."""

from __future__ import annotations

import math

from ...models.vision import VisionSpec
from ...types import MediaItem

VALUE_BYTES = {"float32": 4, "bfloat16": 2}


def grid_of(item: MediaItem, vision: VisionSpec) -> tuple[int, int, int]:
    """Return the number of frames or crops, and the rows and columns of patches of each.

    Crops say it by their own size, and their grid may be that of crops.
    """
    if len(item.shape) == 2:
        return item.grid
    crops, _, height, width = item.shape
    return crops, height // vision.patch.size, width // vision.patch.size


def num_windows(vision: VisionSpec, height: int, width: int) -> int:
    """Return the number of sequences of a frame."""
    return -(-height // vision.window) * -(-width // vision.window) if vision.window else 1


def refusal(item: MediaItem, vision: VisionSpec, max_patches: int, max_windows: int) -> str | None:
    """Return why a picture cannot be encoded; None when it can."""
    shown = f"a picture of shape {list(item.shape)} and {list(item.grid)} patches"
    if len(item.shape) not in (2, 4) or min(item.shape) < 1 or min(item.grid) < 0:
        return f"{shown} is not one"
    frames, height, width = grid_of(item, vision)
    if not _fits(item, vision, frames, height, width):
        return f"{shown} is not one of this model"
    side, merge = vision.patch.grid_side, vision.merge
    if height % merge or width % merge or frames * height * width // merge**2 != item.num_tokens:
        return f"{shown} does not make {item.num_tokens} vectors"
    if vision.patch.positions == "in order" and (height, width) != (side, side):
        return f"{shown}: this model takes {side} x {side}"
    if height * width + vision.patch.num_classes > max_patches or num_windows(vision, height, width) > max_windows:
        return f"{shown}: at most {max_patches} can be encoded at once"
    return None


def _fits(item: MediaItem, vision: VisionSpec, frames: int, height: int, width: int) -> bool:
    """Return whether the pixels are there."""
    patch = vision.patch
    if len(item.pixels) != math.prod(item.shape) * VALUE_BYTES[item.dtype] or min(frames, height, width) < 1:
        return False
    if len(item.shape) == 2:
        return item.shape == (frames * height * width, patch.values)
    return item.shape[1] == patch.channels
