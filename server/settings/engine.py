"""Settings of every command that runs the engine: limits of a step, KV cache, host threads, modelled stack."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ..checkpoint.manifest import is_artifact
from ..config import EngineConfig, TraceConfig
from ..config.formats import Batching, LevelIsa, Pace, SchedulingPolicy, StackName
from ..cost.stacks import STACKS, Stack, default_stack
from ..device.catalog import instance
from ..host.affinity import NONE, choose_cpus
from ..host.cpu_quota import host_threads
from .adapters import AdapterSettings
from .base import slice_of
from .model import Json, ModelSettings
from .neuron import ARTIFACTS
from .sources import neuron_variables, runtime_cores
from .speculation import read_speculation

CpuThreads = Annotated[int, Field(ge=1, le=1024)] | Literal["auto"]


class EngineSettings(ModelSettings, AdapterSettings):
    """Base of the settings of commands that run the engine."""

    max_num_batched_tokens: int = Field(512, ge=1, le=131072, description="tokens computed in one step")
    max_num_queued_reqs: int = Field(
        1024, ge=1, le=1_000_000, description="most open sequences; further requests get a 429"
    )
    block_size: int = Field(32, ge=16, le=1024, multiple_of=16, description="tokens in a KV cache block")
    kv_cache_dtype: Literal["auto", "bfloat16", "int8", "fp8"] = Field(
        "auto", description="type of the KV cache; int8 and fp8 have a scale for each token and head; auto is dtype"
    )
    enable_prefix_caching: bool = Field(True, description="reuse the KV cache of equal prompt prefixes")
    speculative_config: Json = Field(
        None,
        description='JSON with vLLM\'s keys, such as {"method":"ngram"}: draft tokens and verify several in a step; the'
        " output is the same (default: off)",
    )
    num_gpu_blocks_override: int | None = Field(
        None, ge=2, description="number of KV cache blocks (default: as many as fit in device memory)"
    )
    device_memory_utilization: float = Field(0.92, gt=0, le=1, description="share of device memory that may be used")
    cpu_threads: CpuThreads = Field(
        "auto", description="host threads; auto follows CPUs and quota, and uses one thread for small steps"
    )
    cpu_binding: str = Field(
        NONE, description="CPUs to bind host threads to, such as 0-3,8; auto takes one of each core first"
    )
    isa: LevelIsa | None = Field(
        None, description="instruction set of the kernels (default: the best that the host has)"
    )
    stack: StackName | None = Field(
        None,
        description="modelled serving software: its batching, padding and host work (default with --pace device: "
        "the current software of the accelerator; otherwise ideal)",
    )
    batching: Batching | None = Field(
        None,
        description="mix prefill and decode in a step, or run them apart on compiled shapes (default: the stack's)",
    )
    scheduling_policy: SchedulingPolicy = Field(
        "fair",
        description="who is served next: fcfs by arrival; priority, then arrival; fair: keys of one priority take "
        "turns by weight; slo: the first deadline (ttft_slo_ms, tpot_slo_ms)",
    )
    step_time_target_ms: Annotated[float, Field(gt=0, le=86_400_000)] | Literal["auto"] | None = Field(
        None,
        description="milliseconds of a step that mixes prompts and decodes, from which its prompt tokens follow; auto "
        "follows the load (default: none, max_num_batched_tokens alone)",
    )
    pace: Pace = Field(
        "host", description="speed of answers; host: of this host; device: no faster than the modelled accelerator"
    )
    kernel_checks: bool = Field(
        False, description="check that each access of a kernel stays inside its operands; very slow"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest severity that is logged"
    )

    allow_unsupported_types: bool = Field(
        False, description="compute types that the accelerator lacks, such as mxfp4 before Trainium3"
    )

    require_artifact_digest: str | None = Field(
        None, pattern="^[0-9a-f]{64}$", description="SHA-256 that the compiled model's neuronserve.json must have"
    )

    @model_validator(mode="after")
    def _every_sequence_gets_a_token(self) -> Self:
        """Refuse a step too small for one token of each running sequence."""
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}: "
                f"it must be at least max_num_seqs, {self.max_num_seqs}"
            )
        return self

    @property
    def serving_stack(self) -> Stack:
        """Return the modelled serving software. Raises DeviceError for an unknown instance."""
        if self.stack is not None:
            return STACKS[self.stack]
        return default_stack(instance(self.device).chip.name) if self.pace == "device" else STACKS["ideal"]

    @property
    def notices(self) -> tuple[str, ...]:
        if self._artifacts is None or self.compiled_model:
            return self.neuron.notices
        return (*self.neuron.notices, f"{ARTIFACTS}: {self._artifacts} holds no compiled model: compile -o writes one")

    @property
    def compiled_model(self) -> Path | None:
        """Directory of the compiled model that Neuron's variable names, if it holds one."""
        directory = self._artifacts
        return directory if directory is not None and is_artifact(directory) else None

    @property
    def _artifacts(self) -> Path | None:
        directory = neuron_variables().get(ARTIFACTS)
        return Path(directory) if directory else None

    def engine_config(self, model_path: Path) -> EngineConfig:
        """Return the engine's configuration, with every dependence on the host resolved."""
        formats, stack = self.requested_formats, self.serving_stack
        cpu_threads = host_threads() if self.cpu_threads == "auto" else self.cpu_threads
        return slice_of(
            EngineConfig,
            self,
            model_path=str(model_path),
            stack=stack.name,
            batching=self.batching or stack.batching,
            dtype=formats.dtype,
            quantization=formats.quantization,
            groups=formats.groups,
            num_blocks_override=self.num_gpu_blocks_override,
            cpu_threads=cpu_threads,
            fit_threads=self.cpu_threads == "auto",
            cpus=choose_cpus(self.cpu_binding, cpu_threads),
            kernel_cache_dir=self.kernel_cache,
            catalog=self.catalog_config,
            calibration=self.calibration_file,
            runtime_cores=runtime_cores(),
            trace=TraceConfig(),
            kernel_checks=self.kernel_checks,
            neuron=self.neuron.config,
            lora=self.lora_config,
            speculation=read_speculation(self.speculative_config),
        )
