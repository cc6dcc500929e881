"""The settings of `neuronserve models`."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import CliPositionalArg

from neuronserve.server.settings.catalog import CatalogSettings
from neuronserve.server.settings.sources import cache_home


class ModelsSettings(CatalogSettings):
    """Settings of `neuronserve models`."""

    model: CliPositionalArg[str] = Field("", description="checkpoint directory or GGUF file (default: list all kinds)")
    device: str = Field("inf2.xlarge", description="instance that is looked at first")

    @property
    def gguf_cache(self) -> Path:
        """Directory of what is made of GGUF files beside their weights."""
        return cache_home() / "neuronserve" / "gguf"
