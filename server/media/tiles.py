"""The image processor of Llama 4: a picture is divided into square tiles, and the whole in one tile follows them.

Transformers' own needs torch. The rules are those of its `models/llama4/image_processing_llama4.py`: of the canvases
that are whole tiles, the one that loses least of the picture's resolution, then the one with the smallest area.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import ml_dtypes
import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta
from PIL import Image

Float32 = npt.NDArray[np.float32]
Size = tuple[int, int]  # height and width

Side = Annotated[int, Meta(ge=1, le=4096)]
Colours = Annotated[tuple[float, ...], Meta(min_length=3, max_length=3)]


class _Square(msgspec.Struct, frozen=True):
    height: Side
    width: Side


class _Options(msgspec.Struct):
    """Keys of preprocessor_config.json. Without one of the three steps, transformers gives the model other types."""

    size: _Square = _Square(336, 336)
    max_patches: Annotated[int, Meta(ge=1, le=256)] = 16
    resample: Literal[0, 1, 2, 3, 4, 5] = 2  # Pillow's number of a filter
    rescale_factor: float = 1 / 255
    image_mean: Colours = (0.5, 0.5, 0.5)
    image_std: Colours = (0.5, 0.5, 0.5)
    resize_to_max_canvas: bool = False
    do_resize: Literal[True] = True
    do_rescale: Literal[True] = True
    do_normalize: Literal[True] = True


class TileProcessor:
    """Called as transformers' processors are, with one picture in RGB."""

    def __init__(self, **options: Any) -> None:
        """Raises ValueError for options that are out of range or not implemented."""
        known = {key: value for key, value in options.items() if value is not None}
        self._options = read = msgspec.convert(known, _Options)
        if read.size.height != read.size.width:
            raise ValueError(f"size: must be a square, got {read.size.height} x {read.size.width}")
        self._levels = _levels(read)

    def __call__(self, images: list[Image.Image], **_: Any) -> dict[str, Any]:
        """Return `pixel_values` [1, tiles, 3, height, width], and the `rows` and `cols` of tiles before the whole."""
        (image,), read, side = images, self._options, self._options.size.height
        size = image.height, image.width
        rows, columns = _grid(size, side, read.max_patches, read.resize_to_max_canvas)
        canvas = target = rows * side, columns * side
        if not read.resize_to_max_canvas:
            target = min(max(size[0], side), canvas[0]), min(max(size[1], side), canvas[1])
        height, width = _scaled(size, target)
        pixels = np.zeros((*canvas, 3), np.uint8)
        pixels[:height, :width] = self._resized(image, (height, width))
        tiles = pixels.reshape(rows, side, columns, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
        if len(tiles) > 1:
            tiles = np.concatenate([tiles, self._resized(image, (side, side))[None]])
        values = np.stack([self._levels[channel][tiles[..., channel]] for channel in range(3)], axis=1)
        return {"pixel_values": values[None], "rows": [[rows]], "cols": [[columns]]}

    def _resized(self, image: Image.Image, size: Size) -> npt.NDArray[np.uint8]:
        return np.asarray(image.resize(size[::-1], self._options.resample))


def _levels(options: _Options) -> Float32:
    """Return the value of each level of each channel, [3, 256], computed in bfloat16 as in training."""
    kind = ml_dtypes.bfloat16
    levels = (np.arange(256, dtype=np.float32) * np.float32(options.rescale_factor)).astype(kind)
    mean, std = (np.array(each, kind)[:, None] for each in (options.image_mean, options.image_std))
    values: Float32 = ((levels - mean) / std).astype(np.float32)
    return values


def _grid(size: Size, side: int, most: int, is_largest: bool) -> Size:
    """Return rows and columns of tiles for a picture of that size.

    The scale is the smallest that does not shrink the picture (`is_largest`: the largest), otherwise the one that
    shrinks it least.
    """
    grids = np.array([(rows, columns) for rows in range(1, most + 1) for columns in range(1, most // rows + 1)])
    scales = (np.float32(side) * grids.astype(np.float32) / np.array(size, np.float32)).min(axis=1)
    grows = scales[scales >= 1]
    best = scales.max() if is_largest or not len(grows) else grows.min()
    fitting = grids[scales == best]
    rows, columns = fitting[fitting.prod(axis=1).argmin()]
    return int(rows), int(columns)


def _scaled(size: Size, target: Size) -> Size:
    """Return the size of the picture scaled into `target`, with its proportions."""
    (height, width), (most_height, most_width) = size, target
    down, across = most_height / height, most_width / width
    if across < down:
        return max(min(math.floor(height * across), most_height), 1), most_width
    return most_height, max(min(math.floor(width * down), most_width), 1)
