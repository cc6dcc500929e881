"""Loading of an engine from a model's directory: checks first, then compiles, loads and reserves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...config import CacheConfig, EngineConfig, SchedulerConfig
from ...config.formats import WeightFormats
from ...cost.calibration import use_calibration
from ...cost.pricer import StepPricer
from ...cost.stacks import STACKS
from ...device.buckets import BucketLists, CompiledShapes, compiled_shapes
from ...device.catalog import instance, use_catalog
from ...device.core import NeuronCore
from ...device.ledger import MemoryLedger
from ...errors import SettingsError
from ...host.memory import GIB, available_bytes, host_kv_blocks, require_host_memory
from ...kernels.checks import use_checks
from ...kernels.dispatch import kernel_isas, require_isa
from ...kernels.isa.cache import use_cache
from ...link.messages import EngineInfo, LoadedAdapter
from ...models.spec import ModelSpec
from ...models.tensors import num_params
from ...placement.cache_layout import kv_cache_dtype, kv_slot_sizes
from ...placement.fit import budget_bytes, require_fit, require_type, with_types_of
from ...placement.footprint import ServingShape, StepLimits
from ...placement.host_footprint import HostFootprint, vision_bytes
from ...placement.matrices import main_format
from ...placement.shard import ShardSpec
from ...placement.state_layout import num_state_slots
from ..adapters import AdapterBank
from ..buffers import ActivationBuffers, ConstantTables, KVPool, most_kept
from ..cross.loading import place_encoder, sound_shape, source_encoder
from ..encode.beside import Beside, LayerPool, encode_beside
from ..encode.distances import with_distances
from ..grammar_store import GrammarStore
from ..operands import Placement
from ..pipeline.ring import Ring
from ..pipeline.stage_model import stage_model, with_stages
from ..runner import ModelRunner
from .adapter_slots import AdapterSlots
from .cores import group_cores, local_stages
from .drafts import add_drafts, beside_drafts, most_drafts, open_draft, place_draft, usable_drafts
from .inventory import core_memory, engine_facts, host_bytes, memory_notes
from .machine import Machine, Placed
from .model_source import context_length, open_model
from .pricing import step_pricer
from .weights import OnProgress, WeightLoader


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A model on its cores, and the configurations of the scheduler and the API that follow from it."""

    runner: ModelRunner
    grammars: GrammarStore
    spec: ModelSpec
    formats: WeightFormats
    cache: CacheConfig
    scheduler: SchedulerConfig
    ledger: MemoryLedger
    info: EngineInfo
    pricer: StepPricer  # of steps on the modelled accelerator
    beside: Beside | None  # encodes texts with the same weights; None: the decoder needs its encoder
    placement: Placement
    adapters: AdapterBank | None = None  # None: adapters are disabled


def load_engine(config: EngineConfig, on_progress: OnProgress, ring: Ring | None = None) -> LoadedEngine:
    """Load the model of `config`, with progress lines; with a `ring`, its first pipeline stage.

    Raises CheckpointError, SettingsError, DeviceError, DeviceMemoryError, HostMemoryError, and the error of a stage.
    """
    return ModelLoading(config, on_progress, ring).run()


class ModelLoading:
    """Steps of one start: cheap checks before long work."""

    def __init__(
        self,
        config: EngineConfig,
        on_progress: OnProgress,
        ring: Ring | None = None,
        stage: int = 0,
        agree: Callable[[int, str], int] | None = None,
    ) -> None:
        """Load `stage` of a pipeline. `agree` says how many blocks of a layout all stages allocate."""
        self._config, self._on_progress = config, on_progress
        self._ring, self._agree = ring, agree if ring is None else ring.agree
        self._grammars = GrammarStore(Path(config.tokenizer_path or config.model_path), Path(config.model_path))
        use_catalog(config.catalog)
        use_calibration(config.calibration)
        tp, kv_dtype = config.tensor_parallel_size, kv_cache_dtype(config.dtype, config.kv_cache_dtype)
        self._instance, path, digest = instance(config.device), Path(config.model_path), config.require_artifact_digest
        requested = with_types_of(self._instance, config.requested_formats)
        self._model = open_model(path, requested, tp, config.cpu_threads, config.enable_expert_parallel, digest)
        self._whole, formats = self._model.spec, self._model.formats
        self._spec = stage_model(config, self._whole, stage)
        compiled_len = None if self._model.buckets is None else self._model.buckets.longest
        self.max_model_len = context_length(config.max_model_len or compiled_len, self._spec)
        self._config = config = usable_drafts(config, self._spec, on_progress)
        self._stack, drafts = STACKS[config.stack], most_drafts(config)
        self._shape = ServingShape(
            config.dtype,
            self.max_model_len,
            config.block_size,
            StepLimits(config.max_num_batched_tokens, config.max_num_seqs + drafts, config.cpu_threads, drafts),
            formats.quantization,
            formats.modules_to_not_convert,
            kv_dtype,
            formats.groups,
            config.lora,
            formats.wide_modules,
            formats.from_values,
            self._stack.fills_first_core,
        )
        self._draft, self._shape = open_draft(config, self._model, requested, self._shape)
        require_type(formats.quantization, self._instance, config.allow_unsupported_types)
        self.core_ids = group_cores(config, self._instance, stage)
        share, groups = config.device_memory_utilization, config.data_parallel.size * local_stages(config)
        self.footprint = require_fit(self._spec, self._instance, tp, self._shape, share, groups)
        self._shard = ShardSpec.of(self._spec, tp, config.enable_expert_parallel)
        self.host = HostFootprint.of(self._spec, self._shard, self._shape)
        self._max_rank = 0 if config.lora is None else config.lora.max_lora_rank  # that the modelled graphs compute
        if config.neuron.samples_on_device is not None:
            self._stack = replace(self._stack, samples_on_device=config.neuron.samples_on_device)
        self._compiled = self._shapes()
        self._require_host()

    def _shapes(self) -> CompiledShapes:
        """Return the shapes of the modelled graphs."""
        config = self._config
        # The ideal stack reads the full length under its own batching policy; Neuron's policy has buckets.
        has_full_length = self._stack.steps_read == "model length" and config.batching == self._stack.batching
        own = config.context_encoding_buckets, config.token_generation_buckets
        buckets = BucketLists(*own, has_full_length, self._stack.prompts_fill == "model length")
        return compiled_shapes(config.batching, config.max_num_seqs, self.max_model_len, buckets, self._model.buckets)

    def place(self) -> Placed:
        """Load the weights and allocate all memory."""
        require_isa(self._config.isa)
        if self._config.kernel_checks:
            use_checks()
        use_cache(self._config.kernel_cache_dir, report=self._on_progress)
        cores, model = [NeuronCore(core) for core in range(self._shard.tp)], self._model
        encoder = place_encoder(model, cores, self._shape, self._on_progress)
        weights = WeightLoader(model.source, self._spec, self._shard, cores, model.formats).load(self._on_progress)
        tables = ConstantTables(cores, self._spec, self._shard, self._shape.num_positions(self._spec))
        buffers = ActivationBuffers(cores, self._spec, self._shard, self._shape)
        bank = self._adapters(cores, buffers.sizes.rows)
        place_draft(self._draft, cores, self._on_progress)
        is_whole = encoder is None and self._agree is None
        layer = LayerPool.of(cores, self._spec, self._shard, self._shape) if is_whole else None
        groups, limits = self.footprint.groups, self._shape.limits
        states = num_state_slots(self._spec, limits.num_seqs, limits.num_drafts)
        num_blocks = self._num_blocks(cores)
        if self._agree is not None:
            num_blocks = self._agree(num_blocks, f"{states} states and blocks for {groups.layout}")
        is_chosen = self._config.num_blocks_override is None
        cache = groups.cache(num_blocks, self._config.enable_prefix_caching, states, is_chosen)
        sizes = kv_slot_sizes(self._spec, self._shard, self._shape.kv_dtype, cache.block_size)
        kv = beside_drafts(self._draft, KVPool.allocate(cores, groups.places, num_blocks, sizes), cache)
        dtypes = self._config.dtype, self._shape.kv_dtype
        placement = Placement(self._spec, self._shard, cores, weights, tables, buffers, kv, cache, *dtypes)
        placement = with_distances(placement, self.max_model_len)
        return Placed(placement, self._ledger(num_blocks), bank, layer, encoder)

    @property
    def machine(self) -> Machine:
        """The host that computes programs of this model."""
        return Machine(self._config, self._shape, self._on_progress)

    def run(self) -> LoadedEngine:
        """Load the model and what runs it."""
        begin, placed = time.perf_counter(), self.place()
        placement, bank, layer = placed.placement, placed.bank, placed.layer
        runner = self.machine.runner(placement, bank, self._grammars, self._ring)
        runner.encoder = source_encoder(placed.encoder, placement, self._shape, runner.pool, self._on_progress)
        others = () if self._ring is None else self._ring.ready()
        runner.warm_up(self._config.fit_threads and not others, self._config.threads_alone)
        resolved = replace(self._config, max_model_len=self.max_model_len)
        beside = None if layer is None else encode_beside(placement, layer, resolved, runner.pool, self._on_progress)
        size, seconds = num_params(self._whole) / 1e6, time.perf_counter() - begin
        threads = f"a step of one token runs on {runner.num_threads_alone} of {runner.pool.num_threads} host thread(s)"
        self._on_progress(f"loaded {size:,.1f}M parameters in {seconds:.1f} s; {threads}")
        figures = self._whole, self._model.formats, self._stack, self._compiled, self._max_rank
        pricer, pooling = step_pricer(self._config, *figures), None if beside is None else beside.facts
        pricer.price_copies(self.footprint.kv_block)
        add_drafts(self._draft, self.machine, runner, pricer, self._grammars, placement)
        longest = self._compiled.longest_chunk
        info = with_stages(self._info(placement.cache, placed.ledger, placement.cores, pricer), others)
        return LoadedEngine(
            runner=runner,
            grammars=self._grammars,
            spec=self._spec,
            formats=self._model.formats,
            cache=placement.cache,
            scheduler=SchedulerConfig.of(self._config, self.max_model_len, longest, self._spec.has_whole_pictures),
            ledger=placed.ledger,
            info=replace(info, adapters=self._loaded(bank), pooling=pooling, threads_alone=runner.num_threads_alone),
            pricer=pricer,
            adapters=bank,
            beside=beside,
            placement=placement,
        )

    def _require_host(self) -> None:
        """Raise HostMemoryError unless all buffers and the least KV cache fit in host memory."""
        blocks = max(self.footprint.min_blocks, self._config.num_blocks_override or 0)
        model = f"{self._config.model_path} with tensor_parallel_size {self._shard.tp} and {blocks} KV blocks"
        if (engines := self._config.data_parallel.size) > 1:
            model += f", on each of {engines} engines,"
        require_host_memory(self.host.total(blocks) + self._config.offload.memory_bytes, model, self._host_bytes(0))

    def _host_bytes(self, taken: int) -> int:
        """Return the host memory that this engine can still take, having written `taken` bytes of the cores' memory.

        Engines that start together are each limited to a share, because free memory is about to be taken by the others.
        """
        available, share = available_bytes(), self._config.data_parallel.host_memory_bytes
        return available if share is None else min(available, share - taken)

    def _ledger(self, num_blocks: int) -> MemoryLedger:
        """Return the account of the accelerator's memory on each core of the group."""
        on, share, tp = self._instance, self._config.device_memory_utilization, self._shard.tp
        ledger = MemoryLedger(on.core_memory_bytes, tp, on.chip.cores_per_chip, share, self.core_ids)
        self.footprint.enter(ledger, num_blocks)
        return ledger

    def _num_blocks(self, cores: Sequence[NeuronCore]) -> int:
        """Return the override, or the KV blocks that the device holds, the host can back and the limits can use."""
        device = self.footprint.max_blocks(budget_bytes(self._instance, self._config.device_memory_utilization))
        if self._config.num_blocks_override is not None:
            return self.overridden(device)
        written = sum(core.used["weights"] for core in cores)
        to_write = sum(sum(core.used.values()) for core in cores) - written + vision_bytes(self._spec, self._shape)
        kept = most_kept(self._config, num_params(self._whole), self.host.kv_block)
        host_bytes = self._host_bytes(written) - to_write
        host_blocks = host_kv_blocks(self.host.kv_block, host_bytes - kept - self._config.offload.memory_bytes)
        usable = 2 * self._config.max_num_seqs * self.footprint.min_blocks  # half of it for cached prefixes
        chosen = min(device, host_blocks, usable)
        if chosen < self.footprint.min_blocks:  # memory that was free at the start is taken by now
            least = self.footprint.min_blocks * self.host.kv_block
            require_host_memory(least, "the KV cache of one full sequence", host_bytes)
            chosen = self.footprint.min_blocks
        by = {device: "device memory", host_blocks: "host memory", usable: "max_num_seqs"}.get(chosen, "max_model_len")
        most = f"at most {chosen * self.host.kv_block / GIB:.2f} GiB of host memory as they are used"
        self._on_progress(f"KV cache: {chosen} blocks, limited by {by} (the device would hold {device}); {most}")
        return chosen

    def overridden(self, device: int) -> int:
        blocks, least = self._config.num_blocks_override or 0, self.footprint.min_blocks
        if not least <= blocks <= device:
            raise SettingsError(
                f"num_gpu_blocks_override is {blocks}: max_model_len {self.max_model_len} needs at least {least} "
                f"blocks, and {self._config.device} with tensor_parallel_size {self._shard.tp} holds {device}"
            )
        return blocks

    def _adapters(self, cores: Sequence[NeuronCore], rows: int) -> AdapterBank | None:
        lora, on = self._config.lora, (cores, self._spec, self._shard, self._config.dtype)
        return None if lora is None else AdapterBank(AdapterSlots(*on, lora, rows), self._max_rank)

    def _loaded(self, bank: AdapterBank | None) -> tuple[LoadedAdapter, ...]:
        return () if bank is None or self._config.lora is None else bank.load_all(self._config.lora, self._on_progress)

    def _info(
        self, cache: CacheConfig, ledger: MemoryLedger, cores: Sequence[NeuronCore], pricer: StepPricer
    ) -> EngineInfo:
        config, spec = self._config, self._whole
        weights, length, host_memory = main_format(spec, self._model.formats), self.max_model_len, host_bytes(cores)
        notes = (
            f"{spec.architecture}, {num_params(spec) / 1e6:,.1f}M parameters in {weights}, context {length}",
            *memory_notes(config, self.core_ids, ledger, host_memory, weights),
        )
        return EngineInfo(
            max_model_len=length,
            cache=cache,
            max_num_queued_reqs=config.max_num_queued_reqs,
            device=config.device,
            tensor_parallel_size=config.tensor_parallel_size,
            pipeline_parallel_size=config.pipeline.size,
            num_instances=1 + len(config.pipeline.addresses),
            dtype=config.dtype,
            vocab_size=spec.vocab_size,
            facts=engine_facts(Path(config.model_path), spec, self._model.formats, pricer, self._compiled, config.pace),
            core_ids=self.core_ids,
            kv_cache_dtype=self._shape.kv_dtype,
            core_names=tuple(ledger.core_name(core) for core in range(ledger.num_cores)),
            memory=tuple(core_memory(ledger, core) for core in range(ledger.num_cores)),
            host_memory=host_memory,
            kernels=kernel_isas(weights),
            notes=(*notes, *self._model.notes),
            max_source_len=0 if spec.source is None else spec.source.max_position,
            sound_shape=sound_shape(spec),
        )
