"""The settings of `neuronserve observe`."""

from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator
from pydantic_settings import CliPositionalArg

from ...server.config import MAX_NUM_SEQS, TENSOR_PARALLEL_SIZE
from ...server.config.formats import Quantization, StackName
from ...server.cost.shape import stored_dtype
from ...server.cost.stacks import STACKS, default_stack
from ...server.device.catalog import instance
from ...server.errors import SettingsError
from ...server.settings.base import Numbers, Texts, slice_of
from ...server.settings.calibration import TimeSettings
from ..model_names import resolve_shape
from ..observe.deployment import Deployment
from ..observe.observation import read_report


class ObserveSettings(TimeSettings):
    """Settings of `neuronserve observe`: the deployment behind the endpoint, and the size of the probe."""

    base_url: CliPositionalArg[str] = Field("http://127.0.0.1:8000", description="address of the server")
    model: str = Field(
        "llama-8b", description="model that it serves: checkpoint directory, config.json, GGUF file or a shape's name"
    )
    device: str = Field("inf2.xlarge", description="instance that it runs on")
    tensor_parallel_size: int = Field(TENSOR_PARALLEL_SIZE, ge=1, le=64, description="NeuronCores of one engine")
    data_parallel_size: int = Field(1, ge=1, le=64, description="engines behind the address")
    max_model_len: int = Field(4096, ge=2, description="positions that a slot is compiled for")
    max_num_seqs: int = Field(
        MAX_NUM_SEQS, ge=1, le=4096, description="slots of one engine that decode is compiled for"
    )
    quantization: Quantization | None = Field(None, description="quantized weights (default: bfloat16)")
    stack: StackName | None = Field(
        None, description="serving software on the accelerator (default: what one would run on it today)"
    )
    served_model_name: str | None = Field(
        None, description="name of the model at the endpoint (default: the first that it lists)"
    )
    api_key: str | None = Field(None, min_length=1, description="key to send; better given as a variable than a flag")
    input_lens: Numbers = Field(
        (), description="prompt lengths to probe alone, with commas (default: by max_model_len)"
    )
    repeats: int = Field(5, ge=1, le=100, description="requests of each prompt length")
    max_seconds: float = Field(
        600, gt=0, le=86400, description="longest time of the probe, in seconds; unfinished steps are left out"
    )
    report: Texts = Field(
        (), description="result of neuronserve bench serve to use instead of a probe; may be repeated"
    )
    output: str = Field("", description="file that the calibration goes to")

    @model_validator(mode="after")
    def _has_output(self) -> Self:
        if not self.output:
            raise ValueError("-o (--output) is missing: the file that the calibration goes to")
        if not Path(self.output).resolve().parent.is_dir() or Path(self.output).is_dir():
            raise ValueError(f"output is {self.output!r}: no file can be written there")
        return self

    @property
    def label(self) -> str:
        """Return host and port. Raises SettingsError for no address; the message does not repeat a possible secret."""
        try:
            parts = urlsplit(self.base_url)
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in {"http", "https"} or not host:
            raise SettingsError("base_url must look like http://HOST:PORT")
        if parts.username is not None or parts.query:
            raise SettingsError("base_url holds more than an address: a key belongs into NEURONSERVE_API_KEY")
        return host if port is None else f"{host}:{port}"

    @property
    def deployment(self) -> Deployment:
        """Return the deployment behind the endpoint. Raises StartError for an impossible one."""
        part = instance(self.device)
        found = slice_of(
            Deployment,
            self,
            model_name=self.model,
            model=resolve_shape(self.model),
            instance=part,
            stack=STACKS[self.stack] if self.stack else default_stack(part.chip.name),
            weight_dtype=stored_dtype(self.quantization, "bfloat16"),  # storage alone, whatever the type
        )
        found.check()
        return found

    @property
    def recorded(self) -> list[tuple[str, dict[str, Any]]]:
        """The runs in the reports that are given, by the names of their files. Raises SettingsError."""
        return [(name, run) for name in self.report for run in read_report(Path(name))]
