"""The settings of `neuronserve serve`: the server's own, and those of the packages that the command adds to it."""

from neuronserve.server.api.addition import Addition
from neuronserve.server.settings.serve import ServeSettings
from neuronserve.testkit.faults.addition import FaultInjection
from neuronserve.testkit.settings.faults import FaultSettings


class ServeCommandSettings(ServeSettings, FaultSettings):
    """Settings of `neuronserve serve`."""

    @property
    def additions(self) -> tuple[Addition, ...]:
        """Fault injection, if a flag asks for it."""
        return () if self.fault_config is None else (FaultInjection(self.fault_config),)
