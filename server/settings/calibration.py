"""Settings of every command that says how long a part takes: by which coefficients."""

from pydantic import Field

from neuronserve.server.cost.calibration import use_calibration
from neuronserve.server.settings.base import File
from neuronserve.server.settings.catalog import CatalogSettings


class TimeSettings(CatalogSettings):
    """Base of the settings of each command that says how long a part takes."""

    calibration: File = Field(
        None, description="coefficients of an endpoint, from neuronserve observe (default: those that are shipped)"
    )

    @property
    def calibration_file(self) -> str | None:
        """What the calibration is read from; None: the shipped one."""
        return None if self.calibration is None else str(self.calibration)

    def put_in_force(self) -> None:
        """Set the calibration too."""
        super().put_in_force()
        use_calibration(self.calibration_file)
