"""The settings of `neuronserve survive`."""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from ...server.errors import SettingsError
from ...server.settings.base import ReportSettings, Texts
from ...server.settings.sources import process_environment
from ..survival.survive import Plan
from ..survival.trials import NAMES, TRIALS


class SurviveSettings(ReportSettings):
    """Settings of `neuronserve survive`; the client's command follows after `--`."""

    model: str | None = Field(None, description="model of the server (default: the built-in one)")
    device: str = Field("inf2.xlarge", description="instance that the server emulates")
    pace: Literal["host", "device"] = Field(
        "host", description="as fast as this host computes, or as the accelerator would"
    )
    timeout: float = Field(60, gt=0, le=86400, description="seconds after which the command counts as hung")
    only: Texts = Field((), description=f"trial to run, of {', '.join(NAMES)}; may be repeated (default: all)")

    @model_validator(mode="after")
    def _has_known_trials(self) -> Self:
        if unknown := [name for name in self.only if name not in NAMES]:
            raise ValueError(f"only is {unknown[0]!r}: known are {', '.join(NAMES)}")
        return self

    def plan(self, command: Sequence[str]) -> Plan:
        """Return the plan of the run. Raises SettingsError without a command."""
        if not command:
            raise SettingsError("there is no command: neuronserve survive [flags] -- python my_client.py")
        trials = [trial for trial in TRIALS if not self.only or trial.name in self.only]
        flags = ("--device", self.device, "--pace", self.pace)
        return Plan(command, process_environment(), trials, self.timeout, self.model, flags)
