"""What transformers' image processor makes of pictures for Llama 4, in llama4_tiles.npz.

It needs torchvision, which the tests do not: `python -m tests.media.llama4_golden` writes the file where that is
installed. Values are bfloat16, kept as the upper halves of their float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.media.pictures import CONFIGS, noise

FILE = Path(__file__).with_name("llama4_tiles.npz")
SIZES = [(1, 1), (57, 31), (31, 57), (300, 100), (640, 480), (65, 64)]
LEVEL = 2 / 255 + 1 / 256  # of 8 bits, and its rounding: torchvision rounds otherwise than Pillow where it resizes


def tiles_of(size: tuple[int, int]) -> dict[str, Any]:
    """Return the processor's output for `noise(*size)`."""
    with np.load(FILE) as file:
        name = f"{size[0]}x{size[1]}"
        values = (file[name].astype(np.uint32) << 16).view(np.float32)
        return {"pixel_values": values, "aspect_ratios": file[f"{name} tiles"]}


def write() -> None:
    """Write the file."""
    from transformers.models.llama4.image_processing_llama4 import Llama4ImageProcessor

    processor, arrays = Llama4ImageProcessor(**CONFIGS["llama4"][1]), {}
    for width, height in SIZES:
        found = processor(images=[noise(width, height)], return_tensors="pt")
        values = found["pixel_values"].float().numpy()
        arrays[f"{width}x{height}"] = (values.view(np.uint32) >> 16).astype(np.uint16)
        arrays[f"{width}x{height} tiles"] = np.asarray(found["aspect_ratios"][0], np.uint8)
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    write()
