"""Settings of every command that looks up an accelerator or a price."""

from pydantic import Field

from ..config import CatalogConfig
from ..device.catalog import use_catalog
from ..device.prices import DEFAULT_REGION
from .base import Settings, slice_of


class CatalogSettings(Settings):
    """Base of the settings of commands that use the catalogue."""

    catalog: str | None = Field(None, description="TOML file with instances and prices that replace the built-in ones")
    region: str = Field(DEFAULT_REGION, description="AWS region whose prices are used")
    spot_discount: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="discount of spot instances from the on-demand price, as a share (default: the catalogue's)",
    )

    @property
    def catalog_config(self) -> CatalogConfig:
        """Sources of the catalogue."""
        return slice_of(CatalogConfig, self, file=self.catalog)

    def put_in_force(self) -> None:
        """Load the catalogue too."""
        super().put_in_force()
        use_catalog(self.catalog_config)
