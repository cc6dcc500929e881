"""Settings of `neuronserve serve`: the server's own, and those of the packages that the command adds to it."""

from neuronserve.server.api.addition import Addition
from neuronserve.server.settings.serve import ServeSettings
from neuronserve.testkit.settings.faults import FaultSettings


class ServeCommandSettings(ServeSettings, FaultSettings):
    """Settings of `neuronserve serve`."""

    @property
    def additions(self) -> tuple[Addition, ...]:
        """The console and fault injection, imported late because they import FastAPI.

        Several API processes have no console: each knows only its own requests.
        """
        found: list[Addition] = []
        if self.console and self.api_workers == 1:
            from neuronserve.console.addition import ConsolePages
            from neuronserve.console.question import InForce

            found.append(ConsolePages(InForce(self.catalog_config, self.calibration_file)))
        if self.fault_config is not None:
            from neuronserve.testkit.faults.addition import FaultInjection

            found.append(FaultInjection(self.fault_config))
        return tuple(found)
