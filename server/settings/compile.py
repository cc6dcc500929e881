"""The settings of `neuronserve compile`."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import CliToggleFlag

from ..config import CompileConfig
from ..host.cpu_quota import host_threads
from .base import ReportSettings, slice_of
from .model import ModelSettings
from .strict import StrictSettings


class CompileSettings(ModelSettings, ReportSettings, StrictSettings):
    """Settings of `neuronserve compile`."""

    output: str = Field("", description="directory to write; must be new or empty")

    report_only: CliToggleFlag[bool] = Field(
        False,
        description="print the graphs that the accelerator's compiler would get, from config.json; write no model",
    )

    @model_validator(mode="after")
    def _has_an_output(self) -> Self:
        if not (self.output or self.report_only):
            raise ValueError("-o (--output) is missing: the directory to write the compiled model to")
        return self

    def compile_config(self, model_path: Path) -> CompileConfig:
        """Options of the compilation."""
        return slice_of(
            CompileConfig,
            self,
            model_path=str(model_path),
            output_path="" if self.report_only else self.output,
            requested_formats=self.requested_formats,
            kernel_cache_dir=self.kernel_cache,
            cpu_threads=host_threads(),
            neuron=self.neuron.config,
        )
