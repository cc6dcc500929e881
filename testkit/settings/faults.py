"""Settings of faults that a server injects into its answers to test clients."""

import msgspec
from pydantic import Field
from pydantic_settings import CliToggleFlag

from ...server.settings.base import File, Settings
from ...server.settings.serve import ServeSettings
from ..faults.rule_file import FAULT_HEADER, read_rules
from ..faults.rules import FaultConfig


class FaultSettings(Settings):
    """Base of the settings of each command that answers clients."""

    inject_faults: File = Field(None, description="YAML file with rules of faults to test clients with (default: none)")
    allow_fault_header: CliToggleFlag[bool] = Field(
        False, description=f"let a request ask for a fault by its header {FAULT_HEADER}"
    )

    @property
    def fault_config(self) -> FaultConfig | None:
        """Rules of faults; None: no injection. Raises SettingsError."""
        if self.inject_faults is None and not self.allow_fault_header:
            return None
        found = FaultConfig() if self.inject_faults is None else read_rules(self.inject_faults)
        return msgspec.structs.replace(found, is_header_allowed=self.allow_fault_header)


class FaultyServeSettings(ServeSettings, FaultSettings):
    """Settings of `neuronserve serve` with fault injection."""
