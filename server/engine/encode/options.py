"""Options of `neuronserve embed`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class EmbedOptions:
    """Texts, their prompt or query, and the form of the output."""

    model_name: str  # as the user wrote it
    texts: tuple[str, ...]
    file: Path | None = None  # more texts, one on each line; "-" is standard input
    query: str | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    dimensions: int | None = None
    format: Literal["text", "json"] = "text"
