"""Settings of `neuronserve calibrate`."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from ...server.config.formats import StackName
from ...server.settings.base import File, ReportSettings


class CalibrateSettings(ReportSettings):
    """Settings of `neuronserve calibrate`."""

    data: File = Field(None, description="CSV with rows to fit")
    check_file: File = Field(None, description="CSV with rows to hold the stored calibration against; fits nothing")
    stack: StackName | None = Field(None, description="with --check: compare load tests of this software alone")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.data is None) == (self.check_file is None):
            raise ValueError("one of --data and --check is needed, and not both")
        if self.data is not None and self.stack is not None:
            raise ValueError(f"--stack is {self.stack}: it goes with --check, a fit takes the load tests of all")
        return self

    @property
    def rows(self) -> Path:
        """Return the file of --data or --check."""
        return self.data or self.check_file or Path()
