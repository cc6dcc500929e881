"""Settings of `neuronserve calibrate`."""

from typing import Self

from pydantic import Field, model_validator

from ...server.config.formats import StackName
from ...server.settings.base import File, ReportSettings


class CalibrateSettings(ReportSettings):
    """Settings of `neuronserve calibrate`."""

    data: File = Field(None, description="CSV with rows to fit")
    check_file: File = Field(None, description="CSV with rows to hold the stored calibration against; fits nothing")
    encoders: File = Field(
        None, description="CSV with rows of encoders: fitted too, or alone; with --check only compared"
    )
    stack: StackName | None = Field(None, description="with --check: compare load tests of this software alone")

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.data is not None and self.check_file is not None:
            raise ValueError("--data and --check exclude each other: a check fits nothing")
        if self.data is None and self.check_file is None and self.encoders is None:
            raise ValueError("one of --data, --check and --encoders is needed")
        if self.data is not None and self.stack is not None:
            raise ValueError(f"--stack is {self.stack}: it goes with --check, a fit takes the load tests of all")
        return self
