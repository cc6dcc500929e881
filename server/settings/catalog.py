"""Settings of every command that looks up a part, a price or a time: which data sheet and coefficients."""

from __future__ import annotations

from pydantic import Field

from server.config import CatalogConfig
from server.device.prices import DEFAULT_REGION
from server.settings.base import File, Settings, slice_of


class CatalogSettings(Settings):
    """Base of the settings of each command that knows the catalogue. `server/cli.py` puts it in force."""

    catalog: str | None = Field(None, description="TOML file with parts and prices over the built-in ones")
    region: str = Field(DEFAULT_REGION, description="AWS region whose prices are used")
    spot_discount: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="share off the on-demand price that a spot instance costs less (default: what the catalogue knows)",
    )

    @property
    def catalog_config(self) -> CatalogConfig:
        """What the catalogue is loaded from."""
        return slice_of(CatalogConfig, self, file=self.catalog)


class TimeSettings(CatalogSettings):
    """Base of the settings of each command that says how long a part takes. `server/cli.py` puts these in force too."""

    calibration: File = Field(
        None, description="coefficients of an endpoint, from neuronserve observe (default: those that are shipped)"
    )

    @property
    def calibration_file(self) -> str | None:
        """What the calibration is read from; None: the shipped one."""
        return None if self.calibration is None else str(self.calibration)
