"""Limits of pictures and sound that requests bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MediaConfig:
    """Settings of the media of requests."""

    allowed_media_hosts: tuple[str, ...] = ()  # hosts that pictures may be fetched from; () = none is fetched
    max_images: int = 16  # of one prompt
    max_image_bytes: int = 20 * 2**20  # of one file
    max_image_pixels: int = 2**25  # width x height of one picture, before it is resized
    media_fetch_timeout: float = 5.0  # seconds of one fetch, redirects included
    processor_options: tuple[tuple[str, Any], ...] = ()  # over the checkpoint's preprocessor_config.json
    max_audio_bytes: int = 25 * 2**20  # of one file
    max_audio_seconds: float = 7200.0  # of one file


DEFAULT_MEDIA = MediaConfig()
