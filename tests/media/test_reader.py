"""Pictures become what transformers' processors make of them, and bad files are refused by name."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from neuronserve.server.errors import CheckpointError, InvalidRequest
from neuronserve.server.media.config import MediaConfig
from neuronserve.server.media.families import FAMILIES, family_name
from neuronserve.server.media.picture import PictureError, decode
from neuronserve.server.media.reader import Picture, PictureReader, picture_reader

from .llama4_golden import LEVEL, SIZES, tiles_of
from .pictures import CONFIGS, data_url, encoded, noise

PROCESSORS = {
    "qwen2_5_vl": Qwen2VLImageProcessorPil,
    "qwen3_vl": Qwen2VLImageProcessorPil,
    "gemma3": Gemma3ImageProcessorPil,
    "idefics3": Idefics3ImageProcessorPil,
    "smolvlm": SmolVLMImageProcessorPil,
    "mistral3": PixtralImageProcessorPil,
    "llava": PixtralImageProcessorPil,
}
MOST = 2**25


def checkpoint(directory: Path, model_type: str) -> Path:
    config, options = CONFIGS[model_type]
    (directory / "config.json").write_text(json.dumps({"model_type": model_type, **config}))
    (directory / "preprocessor_config.json").write_text(json.dumps(options))
    return directory


def reader_of(directory: Path, model_type: str, config: MediaConfig | None = None) -> PictureReader:
    reader = picture_reader(checkpoint(directory, model_type), config or MediaConfig())
    assert reader is not None
    return reader


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, PictureReader]]:
    reader = reader_of(tmp_path_factory.mktemp(request.param), request.param)
    yield request.param, reader
    reader.close()


def oracle(model_type: str, image: Image.Image) -> dict[str, Any]:
    if model_type == "llama4":
        return tiles_of(image.size)
    config, options = CONFIGS[model_type]
    extra: dict[str, Any] = {}
    if model_type in ("idefics3", "smolvlm"):
        extra = {"return_row_col_info": True}
    if model_type in ("mistral3", "llava"):
        extra = {"patch_size": config["vision_config"]["patch_size"] * config.get("spatial_merge_size", 1)}
    return dict(PROCESSORS[model_type](**options)(images=[image], return_tensors="np", **extra))


def text_of(model_type: str, found: dict[str, Any]) -> str:
    """Return the text that transformers' processor puts in place of a picture."""
    from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
    from transformers.models.llama4.processing_llama4 import Llama4Processor
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

    config, _ = CONFIGS[model_type]
    vision = config.get("vision_config", {})
    if model_type.startswith("qwen"):
        known = SimpleNamespace(image_token="<|image_pad|>", image_processor=SimpleNamespace(merge_size=2))
        return str(Qwen3VLProcessor.replace_image_token(known, found, 0))
    if model_type == "gemma3":
        known = SimpleNamespace(
            full_image_sequence="\n\n<start_of_image>" + "<image_soft_token>" * 4 + "<end_of_image>\n\n"
        )
        return str(Gemma3Processor.replace_image_token(known, found, 0))
    if model_type in ("idefics3", "smolvlm"):
        known = SimpleNamespace(
            fake_image_token="<fake_token_around_image>",
            global_image_tag="<global-img>",
            image_token="<image>",
            image_seq_len=int((64 // 8) ** 2 / config["scale_factor"] ** 2),
        )
        return str(Idefics3Processor.replace_image_token(known, found, 0))
    if model_type == "llama4":
        return str(Llama4Processor._prompt_split_image(None, found["aspect_ratios"], 4))
    side = vision["patch_size"] * config.get("spatial_merge_size", 1)  # PixtralProcessor itself needs torchvision
    rows, columns = (int(pixels) // side for pixels in found["image_sizes"][0])
    return "".join(["[IMG]" * columns + "[IMG_BREAK]"] * rows)[: -len("[IMG_BREAK]")] + "[IMG_END]"


def values_of(picture: Picture) -> np.ndarray[Any, Any]:
    return np.frombuffer(picture.values.pixels, np.float32).reshape(picture.values.shape)


@pytest.mark.parametrize("size", SIZES)
async def test_values_and_text_are_those_of_transformers(
    family: tuple[str, PictureReader], size: tuple[int, int]
) -> None:
    model_type, reader = family
    image = noise(*size)
    found = oracle(model_type, image)
    picture = await reader.read(data_url(encoded(image)), "x")
    expected = np.asarray(found["pixel_values"], np.float32)
    values, expected = values_of(picture), expected[0] if expected.ndim == 5 else expected
    assert values.shape == expected.shape
    assert np.abs(values - expected).max() <= (LEVEL if model_type == "llama4" else 0.0)
    assert picture.text == text_of(model_type, found)
    assert (
        picture.num_tokens
        == picture.text.count(FAMILIES[family_name({"model_type": model_type, **CONFIGS[model_type][0]})].placeholder)
        > 0
    )


async def test_the_digest_is_of_what_the_encoder_reads(family: tuple[str, PictureReader]) -> None:
    _, reader = family
    first, again, other = [
        await reader.read(data_url(encoded(noise(40, 30, seed=seed), kind)), "x")
        for seed, kind in ((1, "PNG"), (1, "GIF"), (2, "PNG"))
    ]
    lossless = await reader.read(data_url(encoded(noise(40, 30, seed=1), "WEBP", lossless=True), "image/webp"), "x")
    assert first.values.digest == lossless.values.digest != other.values.digest
    assert again.values.digest != first.values.digest  # a GIF has 256 colours


@pytest.mark.parametrize("model_type", ["qwen3_vl"])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"no picture", "is none of these, or is damaged"),
        (b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG"),
        (encoded(noise(64, 64))[:2000], "is damaged"),
        (encoded(noise(64, 64), "JPEG")[:700], "is damaged"),
        (encoded(noise(64, 64), "BMP"), "must be PNG, JPEG, WEBP, GIF"),
        (encoded(Image.new("L", (20_000, 20_000)), "PNG"), "20000 x 20000 = 400000000 pixels; the limit is 33554432"),
        (encoded(Image.new("L", (20_000, 1)), "PNG"), "aspect ratio"),
    ],
    ids=["empty", "text", "svg", "cut-png", "cut-jpeg", "bmp", "huge", "line"],
)
async def test_a_bad_file_is_refused_with_its_reason(tmp_path: Path, model_type: str, data: bytes, reason: str) -> None:
    reader = reader_of(tmp_path, model_type)
    try:
        with pytest.raises(InvalidRequest, match=reason) as caught:
            await reader.read(data_url(data), "messages[0].content[1].image_url")
        assert caught.value.param == "messages[0].content[1].image_url"
        assert caught.value.code == "invalid_image"
        await reader.read(data_url(encoded(noise(30, 30))), "x")  # nothing else is disturbed
    finally:
        reader.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:image/png,abc", "must be a data URL with base64"),
        ("data:image/svg+xml;base64,AAAA", "media type 'image/svg\\+xml'"),
        ("data:application/pdf;base64,AAAA", "media type 'application/pdf'"),
        ("data:image/png;base64,a*b", "is not valid base64"),
        ("data:image/png;base64,abc", "is not valid base64"),
        ("http://example.org/a.png", "a host that --allowed-media-hosts does not have"),
        ("file:///etc/passwd", "must have an http"),
        ("ftp://example.org/a.png", "must have an http"),
        ("/etc/passwd", "must have an http"),
        ("", "must have an http"),
    ],
)
async def test_a_url_that_is_not_read(tmp_path: Path, url: str, reason: str) -> None:
    reader = reader_of(tmp_path, "gemma3")
    try:
        with pytest.raises(InvalidRequest, match=reason):
            await reader.read(url, "x")
    finally:
        reader.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"size": {"height": 8, "width": 16}}, "must be a square, got 8 x 16"),
        ({"size": {"longest_edge": 8}}, "height"),
        ({"max_patches": 0}, "max_patches"),
        ({"do_resize": False}, "do_resize"),
        ({"image_mean": [0.5]}, "image_mean"),
    ],
)
def test_options_of_tiles_that_cannot_be_used_are_refused(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    config = MediaConfig(processor_options=tuple(options.items()))
    with pytest.raises(CheckpointError, match=reason) as caught:
        reader_of(tmp_path, "llama4", config).start()
    assert caught.value.file == "preprocessor_config.json"


async def test_a_file_above_the_limit_is_refused(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, "gemma3", MediaConfig(max_image_bytes=1000, max_image_pixels=900))
    try:
        with pytest.raises(InvalidRequest, match=r"bytes; the limit is 1000 \(--max-image-bytes\)"):
            await reader.read(data_url(encoded(noise(64, 64))), "x")
        with pytest.raises(InvalidRequest, match="31 x 30 = 930 pixels; the limit is 900"):
            await reader.read(data_url(encoded(Image.new("L", (31, 30)))), "x")
    finally:
        reader.close()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def test_a_bomb_is_refused_by_its_header() -> None:
    """Its data would be 1.2 GB; only its header has been read."""
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(10**6)))
    with pytest.raises(PictureError, match="limit"):
        decode(bomb, MOST)


def test_a_text_chunk_that_grows_is_refused() -> None:
    data = encoded(noise(8, 8))
    grown = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(80 * 2**20)))
    with pytest.raises(PictureError, match="damaged"):
        decode(data[:33] + grown + data[33:], MOST)


def test_an_animation_is_refused() -> None:
    frames = [noise(8, 8, seed=seed) for seed in range(3)]
    for kind in ("GIF", "PNG", "WEBP"):
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
        with pytest.raises(PictureError, match="an animation of 3 frames"):
            decode(data, MOST)
    decode(encoded(frames[0], "GIF"), MOST)


def test_colours_become_rgb() -> None:
    """CMYK and palettes as Pillow converts them, 16 bits scaled, transparent pixels white."""
    cmyk = noise(9, 7, "CMYK")
    data = encoded(cmyk, "JPEG", quality=95)
    assert np.array_equal(np.asarray(decode(data, MOST)), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
    palette = noise(9, 7).quantize(16)
    assert np.array_equal(np.asarray(decode(encoded(palette), MOST)), np.asarray(palette.convert("RGB")))
    deep = Image.fromarray(np.array([[0, 257 * 100, 65535]], np.uint16))
    assert np.asarray(decode(encoded(deep), MOST))[0, :, 0].tolist() == [0, 100, 255]
    clear = Image.new("RGBA", (2, 1), (10, 20, 30, 0))
    clear.putpixel((1, 0), (10, 20, 30, 255))
    assert np.asarray(decode(encoded(clear), MOST)).tolist() == [[[255, 255, 255], [10, 20, 30]]]


def test_a_photo_is_turned_upright() -> None:
    image = Image.new("RGB", (4, 2))
    image.putpixel((0, 0), (255, 255, 255))
    exif = image.getexif()
    exif[0x0112] = 6  # orientation: rotated by 90 degrees
    turned = decode(encoded(image, exif=exif), MOST)
    assert turned.size == (2, 4)
    assert turned.getpixel((1, 0)) == (255, 255, 255)
