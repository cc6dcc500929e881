"""The image processor of Llama 4, for transformers' own needs torch. Its rules are those of `image_processing_llama4`.

A picture is divided into square tiles, and the whole picture in one tile follows them. Of the grids of tiles, the one
that loses least of the picture's resolution is taken, and of these the smallest.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16
from msgspec import Meta
from PIL import Image

Size = tuple[int, int]  # height and width
Side = Annotated[int, Meta(ge=1, le=4096)]
Colours = Annotated[tuple[float, ...], Meta(min_length=3, max_length=3)]


class _Square(msgspec.Struct, frozen=True):
    height: Side
    width: Side


class _Options(msgspec.Struct):
    """Keys of preprocessor_config.json."""

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
        given = {key: value for key, value in options.items() if value is not None}
        self._options = read = msgspec.convert(given, _Options)
        if read.size.height != read.size.width:
            raise ValueError(f"size: must be a square, got {read.size.height} x {read.size.width}")
        levels = (np.arange(256, dtype=np.float32) * np.float32(read.rescale_factor)).astype(bfloat16)  # as in training
        mean, std = (np.array(each, bfloat16)[:, None] for each in (read.image_mean, read.image_std))
        self._levels = ((levels - mean) / std).astype(np.float32)  # [3, 256]

    def __call__(self, images: list[Image.Image], **_: Any) -> dict[str, Any]:
        """Return `pixel_values` [1, tiles, 3, height, width], and the `rows` and `cols` of tiles before the whole."""
        (image,), side, most = images, self._options.size.height, self._options.max_patches
        size, is_largest = (image.height, image.width), self._options.resize_to_max_canvas
        rows, columns = _grid(size, side, most, is_largest)
        pixels = np.zeros((rows * side, columns * side, 3), np.uint8)
        most_height, most_width = pixels.shape[:2]
        if not is_largest:  # nor is a small picture enlarged beyond one tile
            most_height, most_width = min(max(size[0], side), most_height), min(max(size[1], side), most_width)
        down, across = most_height / size[0], most_width / size[1]
        height = most_height if down <= across else max(min(int(size[0] * across), most_height), 1)
        width = most_width if across < down else max(min(int(size[1] * down), most_width), 1)
        pixels[:height, :width] = self._resized(image, (height, width))
        tiles = pixels.reshape(rows, side, columns, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
        if len(tiles) > 1:
            tiles = np.concatenate([tiles, self._resized(image, (side, side))[None]])
        values = np.stack([self._levels[channel][tiles[..., channel]] for channel in range(3)], axis=1)
        return {"pixel_values": values[None], "rows": [[rows]], "cols": [[columns]]}

    def _resized(self, image: Image.Image, size: Size) -> npt.NDArray[np.uint8]:
        return np.asarray(image.resize(size[::-1], self._options.resample))


def _grid(size: Size, side: int, most: int, is_largest: bool) -> Size:
    """Return rows and columns: of the smallest scale that does not shrink the picture, else of the largest scale."""
    grids = np.array([(rows, columns) for rows in range(1, most + 1) for columns in range(1, most // rows + 1)])
    scales = (np.float32(side) * grids.astype(np.float32) / np.array(size, np.float32)).min(axis=1)
    grows = scales[scales >= 1]
    best = scales.max() if is_largest or not len(grows) else grows.min()
    rows, columns = min(grids[scales == best].tolist(), key=lambda grid: grid[0] * grid[1])
    return rows, columns
