"""What `neuronserve embed` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class EmbedOptions:
    """Texts, what is put before them or beside them, and how the rows are printed."""

    model_name: str  # as the user wrote it
    texts: tuple[str, ...]
    file: Path | None = None  # more texts, one on each line; "-" is standard input
    query: str | None = None
    prompt: str | None = None
    prompt_name: str | None = None
    dimensions: int | None = None
    format: Literal["text", "json"] = "text"
