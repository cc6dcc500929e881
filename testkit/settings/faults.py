"""Settings of faults that a server injects into its answers to test clients."""

import msgspec
from pydantic import Field
from pydantic_settings import CliToggleFlag

from ...server.settings.base import File, Settings
from ...server.settings.serve import ServeSettings
from ..faults.rule_file import FAULT_HEADER, read_rules, read_script
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
    """Settings of `neuronserve serve` with fault injection and written answers."""

    script: File = Field(None, description="YAML or Python file with answers for test clients (default: the model's)")
    allow_script: CliToggleFlag[bool] = Field(
        False, description="let operators add answers and faults while the server runs, at /admin/script"
    )

    @property
    def fault_config(self) -> FaultConfig | None:
        """Faults and answers; None: neither. Raises SettingsError."""
        faults = super().fault_config
        if self.script is None and not self.allow_script:
            return faults
        script = FaultConfig() if self.script is None else read_script(self.script)
        faults = faults or FaultConfig(seed=script.seed)
        return msgspec.structs.replace(
            faults,
            rules=(*faults.rules, *script.rules),
            answers=script.answers,
            script=script.script,
            is_script_allowed=self.allow_script,
        )
