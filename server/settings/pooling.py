"""Settings of every command that makes vectors of texts."""

from typing import Literal

from pydantic import Field

from ..config.formats import PoolingMode
from .base import Settings


class PoolingSettings(Settings):
    """Pooling and normalization, over the model's files."""

    pooling: Literal["auto"] | PoolingMode = Field(
        "auto", description="pooling of the tokens' states; auto follows modules.json, else mean"
    )
    normalize: Literal["auto", "true", "false"] = Field(
        "auto", description="normalize vectors to length 1; auto follows modules.json, else true"
    )

    @property
    def pooling_mode(self) -> PoolingMode | None:
        """Pooling that was asked for; None follows the files."""
        return None if self.pooling == "auto" else self.pooling

    @property
    def normalizes(self) -> bool | None:
        """Normalization that was asked for; None follows the files."""
        return None if self.normalize == "auto" else self.normalize == "true"
