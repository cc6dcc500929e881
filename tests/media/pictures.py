"""Pictures for tests, made with Pillow, and the configurations of tiny models that read them."""

from __future__ import annotations

import base64
import io
import random
from typing import Any

from PIL import Image


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Return a picture of random pixels."""
    channels = len(Image.new(mode, (1, 1)).getbands())
    return Image.frombytes(mode, (width, height), random.Random(seed).randbytes(width * height * channels))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return the picture as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


VISION = {"image_size": 64, "patch_size": 8}
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # config.json and preprocessor_config.json
    "qwen2_5_vl": ({}, {"patch_size": 14, "size": {"shortest_edge": 3136, "longest_edge": 50176}}),
    "qwen3_vl": (
        {},
        {"patch_size": 16, "size": {"shortest_edge": 4096, "longest_edge": 65536}, "image_mean": [0.5] * 3},
    ),
    "gemma3": ({"mm_tokens_per_image": 4}, {"size": {"height": 32, "width": 32}}),
    "idefics3": (
        {"vision_config": VISION, "scale_factor": 2},
        {"size": {"longest_edge": 128}, "max_image_size": {"longest_edge": 64}},
    ),
    "smolvlm": (
        {"vision_config": VISION, "scale_factor": 4},
        {"size": {"longest_edge": 192}, "max_image_size": {"longest_edge": 64}},
    ),
    "mistral3": (
        {"vision_config": {"patch_size": 14}, "spatial_merge_size": 2},
        {"size": {"longest_edge": 168}, "patch_size": {"height": 14, "width": 14}},
    ),
    "llama4": (
        {"vision_config": {"image_size": 8, "patch_size": 2}},
        {"size": {"height": 8, "width": 8}, "max_patches": 4, "image_std": [0.5, 0.5, 0.5], "resample": 2},
    ),
    "llava": ({"vision_config": {"model_type": "pixtral", "patch_size": 16}}, {"size": {"longest_edge": 128}}),
}
