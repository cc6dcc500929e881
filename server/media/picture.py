"""Decoding of pictures: bytes that others wrote to RGB. Runs in a limited process, beside `processing.py`."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")  # those of OpenAI's and Anthropic's APIs
MEDIA_TYPES = {f"image/{name.lower()}" for name in FORMATS} | {"image/jpg"}
WHITE = (255, 255, 255)


class PictureError(Exception):
    """The picture cannot be read; `str()` is fit to be shown to a user."""


def decode(data: bytes, most_pixels: int) -> Image:
    """Return the picture in RGB, turned as its EXIF orientation says. Raises PictureError.

    The size is checked before anything is decompressed. Transparent pixels become white, as in vLLM. An animation is
    refused, as by OpenAI's API. 16-bit grey is reduced to 8 bits.
    """
    from PIL import Image, ImageFile, ImageOps

    ImageFile.LOAD_TRUNCATED_IMAGES = False
    Image.MAX_IMAGE_PIXELS = None  # `most_pixels` is the limit
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(data), formats=FORMATS) as image:
            warnings.simplefilter("ignore")
            _require_size(*image.size, most_pixels)
            num_frames = getattr(image, "n_frames", 1)
            if num_frames > 1 and image.format != "MPO":  # a JPEG with previews or depths behind its picture
                raise PictureError(f"is an animation of {num_frames} frames; send one of them as a picture")
            image.load()
            return _rgb(ImageOps.exif_transpose(image))
    except PictureError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # decoders raise many kinds for broken files
        raise PictureError(_reason(data, error)) from error


def _require_size(width: int, height: int, most_pixels: int) -> None:
    if width * height > most_pixels:
        raise PictureError(
            f"has {width} x {height} = {width * height} pixels; the limit is {most_pixels} (--max-image-pixels)"
        )


def _rgb(image: Image) -> Image:
    from PIL.Image import alpha_composite, new

    if image.mode.startswith("I"):  # 16 bits; PIL would cut off instead of scaling
        image = image.point(lambda value: value / 257).convert("L")
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:
        ground = new("RGBA", image.size, (*WHITE, 255))
        image = alpha_composite(ground, image.convert("RGBA"))
    return image.convert("RGB")


def _reason(data: bytes, error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        kind = "an SVG, which is not a bitmap" if b"<svg" in data[:4096] else "none of these, or is damaged"
        return f"must be {', '.join(FORMATS)}; the data is {kind}"
    return f"is damaged: {str(error).splitlines()[0][:200] if str(error) else type(error).__name__}"
