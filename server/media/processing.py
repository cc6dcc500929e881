"""The process that turns pictures into what a vision encoder reads: by transformers' processors, under limits.

Files of pictures are untrusted, and their decoders are large C libraries, so no other process opens them. The
processors are the variants of transformers that need PIL and numpy alone.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import logging
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import msgspec

from ..text.limited_process import Handler, Work
from .families import FAMILIES, Layout, PictureFamily
from .picture import PictureError, decode

TIMEOUT_S = 30.0  # of one picture; the largest takes seconds
PREPARE_TIMEOUT_S = 60.0  # imports
MEMORY_BYTES = 2048 * 2**20  # beyond what the process starts with


Grid = tuple[int, int, int]


class ProcessedPicture(msgspec.Struct, frozen=True):
    """A picture as the vision encoder reads it."""

    digest: bytes  # SHA-256 of shape, grid and values
    pixels: bytes  # float32 in C order
    shape: tuple[int, ...]  # patches [n, d], or crops [crops, 3, height, width]
    grid: Grid  # frames, and rows and columns of patches; zeros where the shape tells them
    division: tuple[int, int]  # rows and columns of patches or crops; zeros where it is not divided


def picture_work(model_type: str, options: Mapping[str, Any], layout: Layout, most_pixels: int) -> Work:
    """Return the work of a process that reads pictures; `options` are those of preprocessor_config.json."""
    prepare = functools.partial(_prepare, model_type, {**options, **layout.options}, layout, most_pixels)
    return Work("the picture", prepare, TIMEOUT_S, PREPARE_TIMEOUT_S, MEMORY_BYTES, refusals=(PictureError,))


def _prepare(model_type: str, options: dict[str, Any], layout: Layout, most_pixels: int) -> Handler:
    family = FAMILIES[model_type]
    return functools.partial(_read, family, _processor(family, options), layout, most_pixels)


def _processor(family: PictureFamily, options: dict[str, Any]) -> Any:
    """Return the family's processor. Raises PictureError for options that cannot be used."""
    for name in ("torch", "torchvision"):  # transformers would import them where they are installed
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    logging.disable(logging.WARNING)  # that there is no torch
    module, _, name = family.processor.rpartition(".")
    package = __package__ if module == "tiles" else "transformers.models"
    kind = getattr(importlib.import_module(f".{module}", package), name)
    try:
        return kind(**{key: value for key, value in options.items() if not key.endswith(("_type", "processor_class"))})
    except (TypeError, ValueError) as error:
        raise PictureError(str(error)) from error


def _read(family: PictureFamily, processor: Any, layout: Layout, most_pixels: int, data: bytes) -> bytes:
    try:
        image = decode(data, most_pixels)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = processor(images=[image], return_tensors="np")
        return msgspec.msgpack.encode(_processed(found["pixel_values"], *_grid(family, found, layout)))
    except ValueError as error:  # such as an aspect ratio that the model cannot read
        raise PictureError(f"cannot be read by this model: {str(error).splitlines()[0][:200]}") from error
    except MemoryError as error:
        raise PictureError(f"takes more than {MEMORY_BYTES >> 20} MiB of memory") from error


def _grid(family: PictureFamily, found: Mapping[str, Any], layout: Layout) -> tuple[Grid, tuple[int, int]]:
    """Return grid and division of the one picture."""
    match family.grid:
        case "image_grid_thw":
            frames, rows, columns = (int(each) for each in found["image_grid_thw"][0])
            return (frames, rows, columns), (rows, columns)
        case "image_position_ids":  # column and row of each patch, -1 of those that fill up
            columns, rows = (int(each) + 1 for each in found["image_position_ids"][0].max(axis=0))
            return (1, rows, columns), (rows, columns)
        case "image_sizes":
            height, width = (int(each) for each in found["image_sizes"][0])
            division = height // layout.patch, width // layout.patch
            return (1, *division), division
        case "rows cols":
            return (1, 0, 0), (int(found["rows"][0][0]), int(found["cols"][0][0]))
        case _:
            return (1, 0, 0), (0, 0)


def _processed(values: Any, grid: Grid, division: tuple[int, int]) -> ProcessedPicture:
    import numpy as np

    array = np.ascontiguousarray(values, dtype=np.float32)
    if array.ndim in (3, 5):  # [pictures, patches, d] or [pictures, crops, 3, height, width], one picture
        array = array[0] if array.ndim == 5 else array[0, : grid[1] * grid[2]]
    pixels = array.tobytes()
    digest = hashlib.sha256(repr((array.shape, grid)).encode() + pixels).digest()
    return ProcessedPicture(digest, pixels, array.shape, grid, division)
