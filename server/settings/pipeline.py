"""Settings of pipeline parallelism: of a server, which is the first stage, and of `neuronserve stage`, a later one."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import CliPositionalArg

from ..config.pipeline import ONE_STAGE, PipelineConfig
from ..errors import SettingsError
from ..link.stage_ends import LEAST_KEY_BYTES
from .base import File, Settings, Texts
from .model import DEFAULT_MODEL
from .sources import cache_home, default_kernel_cache

KEY_FILE = "file with the key, of at least 16 bytes, that stages on several hosts share"


class PipelineSettings(Settings):
    """How the layers of an engine are divided."""

    pipeline_parallel_size: int = Field(
        1, ge=1, le=64, description="stages that the layers are divided into, each on tensor_parallel_size cores"
    )
    pipeline_stages: Texts = Field(
        (),
        description="host:port of `neuronserve stage` of each stage after the first; repeatable (default: here)",
    )
    pipeline_key_file: File = Field(None, description=KEY_FILE)

    @model_validator(mode="after")
    def _every_stage_has_a_place(self) -> Self:
        if self.pipeline_stages and len(self.pipeline_stages) != self.pipeline_parallel_size - 1:
            raise ValueError(
                f"pipeline_stages has {len(self.pipeline_stages)} addresses: pipeline_parallel_size "
                f"{self.pipeline_parallel_size} needs {self.pipeline_parallel_size - 1}"
            )
        if self.pipeline_stages and self.pipeline_key_file is None:
            raise ValueError("pipeline_stages needs pipeline_key_file: the stages would serve anybody")
        return self

    @property
    def pipeline(self) -> PipelineConfig:
        """The engine's slice. Raises SettingsError for a key file that cannot be read or is too short."""
        if self.pipeline_parallel_size == 1:
            return ONE_STAGE
        key = b"" if self.pipeline_key_file is None else read_key(self.pipeline_key_file)
        return PipelineConfig(self.pipeline_parallel_size, self.pipeline_stages, key)


class StageSettings(Settings):
    """Settings of `neuronserve stage`."""

    model: CliPositionalArg[str] = Field(str(DEFAULT_MODEL), description="the same checkpoint as the server's")
    listen: str = Field(description="host:port at which the server and the stage before connect")
    pipeline_key_file: str = Field(description=KEY_FILE)
    kernel_cache_dir: str | None = Field(
        None, description="where compiled kernels are kept (default: under XDG_CACHE_HOME or ~/.cache)"
    )

    @property
    def gguf_cache(self) -> Path:
        """Directory of the configurations and tokenizers made from GGUF files."""
        return cache_home() / "neuronserve" / "gguf"

    @property
    def kernel_cache(self) -> str:
        """Directory of compiled kernels."""
        return self.kernel_cache_dir or default_kernel_cache()


def read_key(file: str | Path) -> bytes:
    """Return the key in `file`. Raises SettingsError when it cannot be read or is too short."""
    try:
        key = Path(file).read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"pipeline_key_file {file}: {error.strerror}") from error
    if len(key) < LEAST_KEY_BYTES:
        raise SettingsError(f"pipeline_key_file {file} has {len(key)} bytes: at least {LEAST_KEY_BYTES} are needed")
    return key
