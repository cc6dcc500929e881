"""Settings that `neuronserve plan` and `neuronserve simulate` share."""

from pydantic import Field
from pydantic_settings import CliPositionalArg

from ...server.config.formats import StackName
from ...server.device.prices import PriceBasis
from ...server.settings.base import File, ReportSettings
from ...server.settings.calibration import TimeSettings
from ...workload.traces import read_trace
from ...workload.workload import Workload

WHICH_MODEL = (
    "checkpoint directory, config.json, GGUF file, or a public model such as llama-3.1-8b (docs/reference/models.md); "
    "llama-1b and qwen-0.5b are shapes of random checkpoints"
)


class PlannerSettings(TimeSettings, ReportSettings):
    model: CliPositionalArg[str] = Field("llama-8b", description=WHICH_MODEL)
    price_basis: PriceBasis = Field("on_demand", description="price of the catalogue to use")
    device_memory_utilization: float = Field(0.92, gt=0, le=1, description="share of device memory that may be used")
    stack: StackName | None = Field(
        None, description="serving software on the accelerator (default: what one would run on it today)"
    )
    trace: File = Field(None, description="trace file with requests to use instead of synthetic ones")

    @property
    def recorded(self) -> Workload | None:
        """Return the requests of the trace file. Raises SettingsError for a file that is no trace."""
        return read_trace(self.trace) if self.trace else None
