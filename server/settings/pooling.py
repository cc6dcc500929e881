"""Settings of every command that makes vectors of texts."""

from typing import Literal

from pydantic import Field

from neuronserve.server.config.formats import PoolingMode
from neuronserve.server.settings.base import Settings


class PoolingSettings(Settings):
    """How a text becomes a vector, over what the model's files say."""

    pooling: Literal["auto"] | PoolingMode = Field(
        "auto", description="how the states of tokens become a vector; auto is as modules.json has it, else mean"
    )
    normalize: Literal["auto", "true", "false"] = Field(
        "auto", description="vectors of length 1; auto is as modules.json has it, else true"
    )

    @property
    def pooling_mode(self) -> PoolingMode | None:
        """None: as the files have it."""
        return None if self.pooling == "auto" else self.pooling

    @property
    def normalizes(self) -> bool | None:
        """None: as the files have it."""
        return None if self.normalize == "auto" else self.normalize == "true"
