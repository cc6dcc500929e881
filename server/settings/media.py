"""Settings of pictures and sound that requests bring."""

import json
from typing import Any, Self

from pydantic import Field, model_validator

from ..media.config import MediaConfig
from .base import Settings, Texts, slice_of
from .model import Json


class MediaSettings(Settings):
    """Limits of the media of requests."""

    allowed_media_hosts: Texts = Field(
        (), description="host that pictures of requests may be fetched from; repeatable (default: none is fetched)"
    )
    limit_mm_per_prompt: Json = Field(
        None, description='JSON with the most pictures of a prompt (default: {"image":16})'
    )
    mm_processor_kwargs: Json = Field(
        None, description="JSON with options of the image processor, over preprocessor_config.json"
    )
    max_image_bytes: int = Field(20 * 2**20, ge=1024, le=2**30, description="largest file of a picture")
    max_image_pixels: int = Field(
        2**25, ge=1, le=2**30, description="most pixels of a picture, before the model's processor resizes it"
    )
    media_fetch_timeout: float = Field(5, gt=0, le=3600, description="seconds in which a picture must be fetched")
    max_audio_bytes: int = Field(25 * 2**20, ge=1024, le=2**34, description="largest file to transcribe")

    @model_validator(mode="after")
    def _media_can_be_read(self) -> Self:
        self._limits()
        _object(self.mm_processor_kwargs, "mm_processor_kwargs")
        return self

    @property
    def media_config(self) -> MediaConfig:
        """Return the limits of media."""
        options = tuple(_object(self.mm_processor_kwargs, "mm_processor_kwargs").items())
        return slice_of(MediaConfig, self, processor_options=options, **self._limits())

    def _limits(self) -> dict[str, int]:
        """Return the limit of pictures, if it is given. Raises ValueError."""
        given = _object(self.limit_mm_per_prompt, "limit_mm_per_prompt")
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1024:
                raise ValueError(f"limit_mm_per_prompt: {name} is {value!r}; it must be a number from 0 to 1024")
        return {"max_images": given["image"]} if "image" in given else {}


def _object(text: str | None, name: str) -> dict[str, Any]:
    """Return the JSON object in `text`; empty without text. Raises ValueError."""
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be a JSON object")
    return value
