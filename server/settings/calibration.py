"""Settings of every command that predicts the accelerator's time: its coefficients."""

from pydantic import Field

from ..cost.calibration import use_calibration
from .base import File
from .catalog import CatalogSettings


class TimeSettings(CatalogSettings):
    """Base of the settings of commands that predict the accelerator's time."""

    calibration: File = Field(
        None, description="coefficients of an endpoint, from neuronserve observe (default: the built-in ones)"
    )

    @property
    def calibration_file(self) -> str | None:
        """File of the calibration; None for the built-in one."""
        return None if self.calibration is None else str(self.calibration)

    def put_in_force(self) -> None:
        """Load the calibration too."""
        super().put_in_force()
        use_calibration(self.calibration_file)
