"""Settings of `neuronserve ls`, `top` and `monitor`, which observe a running server."""

from pydantic import Field
from pydantic_settings import CliToggleFlag

from ..monitor.scrape import Endpoint
from .base import Texts
from .catalog import CatalogSettings


class _UrlSettings(CatalogSettings):
    url: str = Field("http://127.0.0.1:8000", description="address of the server")
    api_key: Texts = Field(
        (), description="key to send (the first); an environment variable hides it from lists of processes"
    )

    @property
    def endpoint(self) -> Endpoint:
        """Address and key. Raises SettingsError for an invalid address."""
        return Endpoint(self.url, next(iter(self.api_key), None))


class LsSettings(_UrlSettings):
    """Settings of `neuronserve ls`."""

    device: str | None = Field(None, description="list this instance instead of a running server's")
    json_output: CliToggleFlag[bool] = Field(False, description="print JSON with the fields of neuron-ls")


class TopSettings(_UrlSettings):
    """Settings of `neuronserve top`."""

    interval: float = Field(1.0, gt=0, le=3600, description="seconds between frames")
    once: CliToggleFlag[bool] = Field(False, description="print one frame, of one interval, and end")


class MonitorSettings(_UrlSettings):
    """Settings of `neuronserve monitor`."""

    interval: float = Field(5.0, gt=0, le=3600, description="seconds between reports")
    once: CliToggleFlag[bool] = Field(False, description="print one report, of one interval, and end")
