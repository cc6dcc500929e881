"""Settings of `neuronserve validate`."""

from pathlib import Path

from pydantic import Field

from ...server.settings.base import File, ReportSettings, slice_of
from ...server.settings.calibration import TimeSettings
from ..validate.command import Outputs


class ValidateSettings(TimeSettings, ReportSettings):
    """Settings of `neuronserve validate`."""

    data: Path = Field(description="CSV with published rows to hold the predictions against")
    encoders: File = Field(None, description="CSV with published rows of encoders, compared too")
    html: File = Field(None, description="write the page, with every figure, to this file; it loads nothing")
    markdown: File = Field(None, description="write the page without single figures to this file")

    @property
    def outputs(self) -> Outputs:
        """Return the files to write."""
        return slice_of(Outputs, self)
