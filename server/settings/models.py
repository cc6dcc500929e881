"""Settings of `neuronserve models`."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import CliPositionalArg

from .catalog import CatalogSettings
from .sources import cache_home


class ModelsSettings(CatalogSettings):
    """Settings of `neuronserve models`."""

    model: CliPositionalArg[str] = Field(
        "", description="checkpoint directory or GGUF file (default: list all supported kinds)"
    )
    device: str = Field("inf2.xlarge", description="instance to try first")

    @property
    def gguf_cache(self) -> Path:
        """Directory of the configurations and tokenizers made from GGUF files."""
        return cache_home() / "neuronserve" / "gguf"
