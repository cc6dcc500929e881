"""Setting of commands that may refuse what a real accelerator is reported not to run."""

from pydantic import Field
from pydantic_settings import CliToggleFlag

from .base import Settings


class StrictSettings(Settings):
    """Whether reports of failures on the real accelerator are warnings or refusals."""

    strict_device: CliToggleFlag[bool] = Field(
        False, description="refuse what a real accelerator is reported not to run, instead of a warning"
    )
