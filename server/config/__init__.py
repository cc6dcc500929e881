"""Frozen configuration: resolved once at the start; each component receives only its own record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from .formats import (
    Batching,
    Dtype,
    KVCacheDtype,
    LevelIsa,
    Pace,
    PoolingMode,
    Quantization,
    RequestedFormats,
    RunnerKind,
    SchedulingPolicy,
    StackName,
    WeightGroups,
)
from .offload import NO_OFFLOAD, OffloadConfig
from .pipeline import ONE_STAGE, PipelineConfig
from .speculation import SpeculationConfig

# Defaults of a deployment, served or simulated.
TENSOR_PARALLEL_SIZE, MAX_NUM_SEQS = 1, 64


class AttentionSpan(NamedTuple):
    """Tokens that a token attends to: all before it, the last `window` including itself, or those of its chunk."""

    window: int = 0  # tokens; 0 = all
    is_chunked: bool = False  # the window is a chunk that begins at a multiple of its size

    def num_behind(self, position: int) -> int:
        """Return the number of leading tokens that no token at or after `position` attends to."""
        if self.is_chunked:
            return position // self.window * self.window
        return max(0, position - self.window + 1) if self.window else 0

    def end_of(self, position: int) -> int:
        """Return the first position whose token attends to no token before `position`; for spans with a window."""
        return -(-position // self.window) * self.window if self.is_chunked else position + self.window - 1

    def most_blocks(self, num_tokens: int, block_size: int, chunk: int) -> int:
        """Return the most blocks that `num_tokens` tokens hold at once while a step computes up to `chunk` of them.

        The window of a chunk's first token may begin with a block's last token: (window - 1) + chunk tokens, and
        block_size - 1 before them.
        """
        num_blocks = -(-num_tokens // block_size)
        return min(num_blocks, -(-(self.window + chunk - 2) // block_size) + 1) if self.window else num_blocks


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache: `num_blocks` blocks on every core, each for `block_size` tokens of one group of layers.

    Layers of a group look back equally far, so a sequence has one block table for all layers of a group.
    """

    num_blocks: int
    block_size: int = 32
    enable_prefix_caching: bool = True
    groups: tuple[AttentionSpan, ...] = (AttentionSpan(),)
    max_chunk: int = 512  # tokens of one sequence in one step
    num_states: int = 0  # slots for states of sequences, the null slot included; 0: no layer keeps a state
    snapshot_blocks: int = 32  # blocks between two snapshots of a sequence's state
    grows: bool = False  # prefixes keep few blocks at first, more where one is computed again
    max_source_len: int = 0  # most positions of an encoder that cross attention reads; 0: there is none
    num_source_blocks: int = 0  # blocks for them, behind the `num_blocks`

    def blocks_of(self, num_tokens: int) -> int:
        """Return the most blocks that one sequence of `num_tokens` tokens holds at once."""
        return sum(span.most_blocks(num_tokens, self.block_size, self.max_chunk) for span in self.groups)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one step and of the queue."""

    max_model_len: int
    max_num_seqs: int = 64  # running at once
    max_num_batched_tokens: int = 512  # computed in one step
    max_num_queued_reqs: int = 1024  # waiting + running; more are refused
    batching: Batching = "continuous"
    max_prompt_chunk: int | None = None  # tokens of one prompt in one step; None = limited by the step alone
    policy: SchedulingPolicy = "fair"
    step_time_target_ms: float | Literal["auto"] | None = None  # of steps that mix prompts and decodes; None = none
    has_whole_pictures: bool = False  # no step ends inside of a picture, whose tokens see each other
    speculation: SpeculationConfig | None = None  # None: each step computes one token of a sequence that decodes
    num_batches: int = 1  # into which sequences that decode are divided: steps that are on their way at once

    @classmethod
    def of(cls, engine: EngineConfig, max_model_len: int, chunk: int | None, whole: bool = False) -> SchedulerConfig:
        """Return the limits that an engine's configuration sets, and those of its model."""
        limits = engine.max_num_seqs, engine.max_num_batched_tokens, engine.max_num_queued_reqs, engine.batching
        order = engine.scheduling_policy, engine.step_time_target_ms
        return cls(max_model_len, *limits, chunk, *order, whole, engine.speculation, engine.pipeline.size)

    @property
    def max_chunk(self) -> int:
        """Largest number of tokens of one sequence in one step."""
        return min(self.max_num_batched_tokens, self.max_prompt_chunk or self.max_num_batched_tokens)


@dataclass(frozen=True, slots=True)
class PoolingLimits:
    """Limits of one step that encodes texts. A text is never divided between steps."""

    max_num_texts: int
    max_num_tokens: int
    max_length: int  # tokens of a text, at most max_num_tokens


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Index of an engine among a server's engines. Each has its own cores, and its share of the host."""

    rank: int = 0
    size: int = 1  # engines of the server
    host_memory_bytes: int | None = None  # limit of this engine on the host; None = all available memory
    num_prefill: int = 0  # first engines, which hand each request over after its first token; 0: none does


@dataclass(frozen=True, slots=True)
class CatalogConfig:
    """The catalogue in force: the built-in data sheet of chips and prices, or one overlaid by a user's file."""

    file: str | None = None  # TOML
    region: str = "us-east-1"  # of the prices
    spot_discount: float | None = None  # 0 to 1, off the on-demand price; None = by the catalogue
    logical_nc_config: int | None = None  # physical cores in a logical core, on chips that allow it; None = default


@dataclass(frozen=True, slots=True)
class RuntimeCores:
    """Values of the Neuron runtime's own variables, which server/device/visible_cores.py reads."""

    visible: str | None = None  # NEURON_RT_VISIBLE_CORES
    count: str | None = None  # NEURON_RT_NUM_CORES


@dataclass(frozen=True, slots=True)
class NeuronConfig:
    """Settings of Neuron's own software; None or () = not set.

    server/device/neuron_keys.py has the keys that set each field, and server/device/neuron_config.py reads them. Fields
    with the name of a setting of the server become that setting. The others only describe the modelled accelerator.
    """

    context_encoding_buckets: tuple[int, ...] = ()  # tokens of a prompt, ascending
    token_generation_buckets: tuple[int, ...] = ()  # positions of a slot, ascending
    tensor_parallel_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    dtype: Dtype | None = None
    quantization: Quantization | None = None
    modules_to_not_convert: tuple[str, ...] = ()
    kv_cache_dtype: KVCacheDtype | None = None
    enable_prefix_caching: bool | None = None
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    prefix_buckets: tuple[int, ...] = ()  # cached tokens before a prompt
    segment_buckets: tuple[int, ...] = ()  # tokens of a cache segment that a prompt's attention reads at once
    decode_batches: tuple[int, ...] = ()  # slots that decode is compiled for
    samples_on_device: bool | None = None
    is_async: bool | None = None  # the host prepares a step while the accelerator runs the previous one
    kernels: tuple[str, ...] = ()  # enabled hand-written kernels, by the names of their keys
    logical_nc_config: int | None = None  # physical cores in one logical core


@dataclass(frozen=True, slots=True)
class LoraModule:
    """A LoRA adapter that is loaded at the start: the model name of its requests, and its directory."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Limits of adapters, and the adapters that are loaded at the start."""

    max_loras: int = 4  # loaded at once
    max_lora_rank: int = 16
    modules: tuple[LoraModule, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """Traces of the engine's steps, in Chrome's trace event format."""

    directory: str | None = None  # where the server writes them; None = no tracing
    max_events: int = 500_000  # in one file; the first ones are kept


@dataclass(frozen=True, slots=True)
class EncodeConfig:
    """Configuration of an encoder."""

    model_path: str  # a local checkpoint directory
    device: str
    tensor_parallel_size: int
    dtype: Dtype  # of activations, and of weights that are not quantized
    max_model_len: int | None  # tokens of a text; None = as its files state
    max_num_seqs: int  # texts in a step
    max_num_batched_tokens: int  # tokens in a step
    device_memory_utilization: float
    cpu_threads: int
    kernel_cache_dir: str
    requested_formats: RequestedFormats
    pooling: PoolingMode | None = None  # None = as the files state
    normalize: bool | None = None  # None = as the files state
    kernel_checks: bool = False
    cpus: tuple[int, ...] = ()
    catalog: CatalogConfig = CatalogConfig()
    host_memory_bytes: int | None = None  # limit on the host; None = all available memory


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Configuration of an engine process, which reads no argv and no environment."""

    model_path: str  # a local checkpoint directory
    device: str  # instance name, such as inf2.xlarge
    tensor_parallel_size: int
    dtype: Dtype  # of activations, and of weights that are not quantized
    max_model_len: int | None  # None = the model's own
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_queued_reqs: int
    block_size: int
    enable_prefix_caching: bool
    device_memory_utilization: float  # share of each core's memory that may be used
    num_blocks_override: int | None  # fixed KV block count, instead of as many as the accelerator has room for
    cpu_threads: int  # host threads that run the emulated cores
    kernel_cache_dir: str
    fit_threads: bool = False  # a step of one token may run on one thread, if more threads gain too little
    threads_alone: int | None = None  # threads of such a step, as measured by an earlier engine
    cpus: tuple[int, ...] = ()  # of the host, one to pin each thread to; () = not pinned
    quantization: Quantization | Literal["none"] | None = None  # None = as the model's files are
    modules_to_not_convert: tuple[str, ...] = ()
    enable_expert_parallel: bool = False  # each core has whole experts, not a share of every expert
    tokenizer_path: str | None = None  # directory with the tokenizer files; None = the model's
    data_parallel: DataParallel = DataParallel()
    batching: Batching = "continuous"
    stack: StackName = "ideal"  # serving software on the modelled accelerator: its host time and padding
    context_encoding_buckets: tuple[int, ...] = ()  # prompt lengths that are compiled; () = automatic
    token_generation_buckets: tuple[int, ...] = ()  # context lengths that decode is compiled for; () = automatic
    pace: Pace = "host"  # "device": a step takes as long as on the modelled accelerator, if the host is fast enough
    kv_cache_dtype: Literal["auto"] | KVCacheDtype = "auto"  # auto = dtype
    catalog: CatalogConfig = CatalogConfig()
    calibration: str | None = None  # file with the coefficients of the cost model; None = the shipped ones
    runtime_cores: RuntimeCores = RuntimeCores()
    trace: TraceConfig = TraceConfig()
    isa: LevelIsa | None = None  # instruction set of the kernels; None = the host's best
    kernel_checks: bool = False  # check every memory access of kernels: slow, for tests
    neuron: NeuronConfig = NeuronConfig()
    groups: WeightGroups | None = None  # of quantization int4; None = as the model's files are
    allow_unsupported_types: bool = False  # of weights, on a chip without them
    require_artifact_digest: str | None = None  # SHA-256 of the manifest that a compiled model must have
    lora: LoraConfig | None = None  # None: no adapters
    runner: RunnerKind = "auto"  # "auto": as the model's files state
    pooling: PoolingMode | None = None  # None = as the model's files state
    normalize: bool | None = None  # None = as the model's files state
    scheduling_policy: SchedulingPolicy = "fair"
    step_time_target_ms: float | Literal["auto"] | None = None
    speculation: SpeculationConfig | None = None  # None: no drafts
    most_kept_bytes: int | None = None  # of KV blocks that outlive the engine; None = while copying is worth it
    offload: OffloadConfig = NO_OFFLOAD
    pipeline: PipelineConfig = ONE_STAGE
    logs_cache: bool = False  # for subscribers to KV events

    @property
    def requested_formats(self) -> RequestedFormats:
        return RequestedFormats(
            self.dtype, self.quantization, self.modules_to_not_convert, self.groups, self.allow_unsupported_types
        )


@dataclass(frozen=True, slots=True)
class CompileConfig:
    """Configuration of ahead-of-time compilation, which packs the model at `model_path` into a new directory."""

    model_path: str
    output_path: str  # "" = nothing is written; config.json alone gives the report
    tensor_parallel_size: int
    requested_formats: RequestedFormats
    kernel_cache_dir: str
    max_model_len: int | None = None  # None = the model's own
    context_encoding_buckets: tuple[int, ...] = ()  # () = automatic
    token_generation_buckets: tuple[int, ...] = ()
    cpu_threads: int = 1
    device: str = "inf2.xlarge"  # instance of the report
    max_num_seqs: int = 64  # slots of decode, in the report
    enable_expert_parallel: bool = False
    neuron: NeuronConfig = NeuronConfig()
