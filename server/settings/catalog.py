"""Settings of every command that looks up a part or a price: which data sheet, whose prices."""

from pydantic import Field

from neuronserve.server.config import CatalogConfig
from neuronserve.server.device.catalog import use_catalog
from neuronserve.server.device.prices import DEFAULT_REGION
from neuronserve.server.settings.base import Settings, slice_of


class CatalogSettings(Settings):
    """Base of the settings of each command that knows the catalogue."""

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

    def put_in_force(self) -> None:
        """Set the catalogue too."""
        super().put_in_force()
        use_catalog(self.catalog_config)
