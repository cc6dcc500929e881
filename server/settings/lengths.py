"""The settings of the lengths that a model is compiled for, at compilation and when it is served."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from server.settings.model import ModelSettings
from server.settings.sources import split_text

Lengths = Annotated[tuple[int, ...], NoDecode]


class LengthSettings(ModelSettings):
    """Base of the settings of each command that compiles or serves. Bucket names are those of NxD Inference."""

    max_model_len: int | None = Field(None, ge=2, description="longest context in tokens (default: the model's)")
    context_encoding_buckets: Lengths = Field(
        (), description="compiled prompt lengths, with commas (default: powers of two from 128)"
    )
    token_generation_buckets: Lengths = Field(
        (), description="context lengths that decode is compiled for, with commas (default: by --batching)"
    )

    @field_validator("context_encoding_buckets", "token_generation_buckets", mode="before")
    @classmethod
    def _split_lengths(cls, value: Any) -> Any:
        return split_text(value)
