"""Settings of `neuronserve doctor`."""

from pydantic import Field
from pydantic_settings import CliToggleFlag

from .base import Settings
from .sources import default_kernel_cache


class DoctorSettings(Settings):
    """Settings of `neuronserve doctor`."""

    host: str = Field("127.0.0.1", description="address that a server would listen on")
    port: int = Field(8000, ge=0, le=65535, description="TCP port that a server would listen on; 0 for any")
    kernel_cache_dir: str | None = Field(
        None, description="where compiled kernels are kept (default: under XDG_CACHE_HOME or ~/.cache)"
    )
    json_output: CliToggleFlag[bool] = Field(False, description="print findings and all facts as JSON")

    @property
    def kernel_cache(self) -> str:
        """Directory of compiled kernels."""
        return self.kernel_cache_dir or default_kernel_cache()
