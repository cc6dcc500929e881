"""Pictures of requests: from where a request has them to what a vision encoder reads, within limits."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ..errors import CheckpointError, InvalidRequest
from ..text.fair_threads import text_threads
from ..text.limited_pool import LimitedPool
from ..text.limited_process import Refusal
from ..text.tokenizer import read_json
from .config import MediaConfig
from .families import FAMILIES, Layout, PictureFamily, family_name
from .fetch import Fetcher, FetchError
from .picture import MEDIA_TYPES, PictureError
from .processing import ProcessedPicture, picture_work

INVALID, INVALID_URL = "invalid_image", "invalid_image_url"
_DATA = re.compile(r"data:([^;,]*)(?:;[^;,]*)*?;base64,", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture and its tokens."""

    values: ProcessedPicture
    text: str  # that replaces the mark of the chat template
    num_tokens: int  # placeholders in `text`


class PictureReader:
    """Reads pictures for one model. To be used by one event loop."""

    def __init__(self, model_type: str, layout: Layout, options: Mapping[str, Any], config: MediaConfig) -> None:
        self.family: PictureFamily = FAMILIES[model_type]
        self.config = config
        self._layout = layout
        self._threads = text_threads("pictures")
        work = picture_work(model_type, options, layout, config.max_image_pixels)
        self._pool = LimitedPool(work, self._threads.most_each + 1)
        self._fetcher = Fetcher(config.allowed_media_hosts, config.max_image_bytes, config.media_fetch_timeout)

    def start(self) -> None:
        """Start a process. Raises CheckpointError when the processor's options cannot be used."""
        try:
            self._pool.start()
        except Refusal as error:
            raise CheckpointError("preprocessor_config.json", str(error)) from error

    async def read(self, url: str, param: str) -> Picture:
        """Read the picture at `url`, which may be a data URL. Raises InvalidRequest that names `param`."""
        try:
            if url[:5].lower() == "data:":
                work = partial(self._decoded, url)
            else:
                work = partial(self._processed, await self._fetcher.get(url))
            values = await self._threads.run(work)
        except FetchError as error:
            raise InvalidRequest(f"{param}: the picture {error}.", param, INVALID_URL) from error
        except PictureError as error:
            raise InvalidRequest(f"{param}: the picture {error}.", param, INVALID) from error
        except Refusal as error:
            reason = str(error) if str(error).startswith("the picture ") else f"the picture {error}"
            raise InvalidRequest(f"{param}: {reason}.", param, INVALID) from error
        text = self.family.text(*values.division, self._layout)
        return Picture(values, text, text.count(self.family.placeholder))

    def close(self) -> None:
        """End the processes."""
        self._threads.close()
        self._pool.close()

    def _decoded(self, url: str) -> ProcessedPicture:
        """Process the data in a data URL. Raises PictureError, Refusal."""
        found = _DATA.match(url[:256])
        if found is None:
            raise PictureError("must be a data URL with base64, such as data:image/png;base64,...")
        if found[1].lower() not in MEDIA_TYPES:
            raise PictureError(f"has the media type {found[1][:40]!r}; known are {', '.join(sorted(MEDIA_TYPES))}")
        self._require_size((len(url) - found.end()) * 3 // 4 - 2)  # without padding
        try:
            data = base64.b64decode(url[found.end() :], validate=True)
        except (binascii.Error, ValueError) as error:
            raise PictureError(f"is not valid base64: {error}") from error
        return self._processed(data)

    def _processed(self, data: bytes) -> ProcessedPicture:
        if not data:
            raise PictureError("is empty")
        self._require_size(len(data))
        return msgspec.msgpack.decode(self._pool.reply(data).data, type=ProcessedPicture)

    def _require_size(self, num_bytes: int) -> None:
        most = self.config.max_image_bytes
        if num_bytes > most:
            raise PictureError(f"has {num_bytes} bytes; the limit is {most} (--max-image-bytes)")


def picture_reader(directory: Path, config: MediaConfig) -> PictureReader | None:
    """Return a reader for the checkpoint; None if its family reads no pictures, or it has no processor.

    Raises CheckpointError.
    """
    model = read_json(directory / "config.json", dict[str, Any])
    name = family_name(model)
    family = FAMILIES.get(name)
    options = _options(directory)
    if family is None or options is None:
        return None
    options |= dict(config.processor_options)
    try:
        layout = family.layout(model, options)
    except (KeyError, TypeError, ZeroDivisionError, AttributeError) as error:
        raise CheckpointError("config.json", f"vision_config: {error}") from error
    return PictureReader(name, layout, options, config)


def _options(directory: Path) -> dict[str, Any] | None:
    """Return the options of the image processor: from its own file, or from that of all processors."""
    path = directory / "preprocessor_config.json"
    if path.exists():
        return read_json(path, dict[str, Any])
    options: dict[str, Any] | None = read_json(directory / "processor_config.json", dict[str, Any]).get(
        "image_processor"
    )
    return options
