"""Loader of an engine's process: a model that generates and also encodes, or one that only encodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from ..checkpoint.manifest import is_artifact
from ..checkpoint.model_config import read_model_spec
from ..checkpoint.sentence import MODULES
from ..config import CacheConfig, EncodeConfig, EngineConfig, SchedulerConfig
from ..cost.calibration import use_calibration
from ..cost.encode_pricer import EncodePricer
from ..cost.model import CostModel
from ..cost.shape import stored_dtype
from ..cost.work import Runtime
from ..device.buckets import CompiledShapes, powers_of_two
from ..device.catalog import instance, use_catalog
from ..device.ledger import MemoryLedger
from ..errors import SettingsError
from ..link.messages import EngineInfo, PoolingFacts
from ..models.decoder import decoder_graph
from ..models.heads import CLASSIFIES
from ..models.tensors import num_params
from ..placement.fit import require_type
from ..placement.matrices import main_format
from .cross.encodings import read_sources
from .encode.loading import LoadedEncoder, load_encoder
from .encode.runner import PoolingRunner, SharedRunner
from .load.cores import group_cores
from .load.inventory import core_memory, engine_facts, host_bytes, memory_notes
from .load.loading import load_engine
from .load.weights import OnProgress
from .pipeline.ring import Ring
from .pool_blobs import PoolBlobs
from .process import ServedEngine
from .vision.pictures import load_pictures


def load_served(config: EngineConfig, on_progress: OnProgress, stages: Sequence[Connection] = ()) -> ServedEngine:
    """Load the model of `config` to generate or to encode, as its files say. Raises StartError.

    `stages` are connections to the stages of a pipeline behind the first.
    """
    if is_pooling(config):
        return _Encoder(config, on_progress).run()
    ring = Ring(config, stages, on_progress) if stages else None
    loaded = load_engine(config, on_progress, ring)
    beside, pictures = loaded.beside, load_pictures(config, loaded, on_progress)
    runner = loaded.runner if beside is None else SharedRunner(loaded.runner, beside.runner)
    return ServedEngine(
        runner=runner,
        scheduler=loaded.scheduler,
        info=replace(loaded.info, reads_pictures=pictures is not None),
        pricer=loaded.pricer,
        encodings=read_sources(config, loaded) if pictures is None else pictures,
        pooling=None if beside is None else beside.limits,
        cache=loaded.cache,
        grammars=loaded.grammars,
        adapters=loaded.adapters,
        give_back=loaded.placement.kv.give_back,
        copy_block=None if ring else loaded.placement.kv.copy,
        blocks=None if ring else PoolBlobs.of(loaded.placement.kv),  # other stages keep the rest of a block
        states=None if ring or (states := loaded.placement.buffers.states) is None else PoolBlobs.states(states),
    )


def is_pooling(config: EngineConfig) -> bool:
    """Return whether the model only encodes: configured so, no output layer, a classifier, or a modules.json."""
    directory = Path(config.model_path)
    if config.runner != "auto" or is_artifact(directory):
        return config.runner == "pooling"
    spec = read_model_spec(directory)
    classifies = spec.architecture.endswith(CLASSIFIES)
    return classifies or not decoder_graph(spec).has_head or (directory / MODULES).exists()


class _Encoder:
    """The steps of the start of an engine that only encodes."""

    def __init__(self, config: EngineConfig, on_progress: OnProgress) -> None:
        if config.lora is not None or config.enable_expert_parallel:
            setting = "enable_expert_parallel" if config.lora is None else "enable_lora"
            raise SettingsError(f"{setting} is for models that generate: {config.model_path} only encodes")
        self._config, self._on_progress = config, on_progress
        use_catalog(config.catalog)
        use_calibration(config.calibration)
        self._instance = instance(config.device)
        self._core_ids = group_cores(config, self._instance)

    def run(self) -> ServedEngine:
        config = self._config
        loaded = load_encoder(encode_config(config), self._on_progress)
        require_type(loaded.formats.quantization, self._instance, config.allow_unsupported_types)
        limits, encoder = loaded.limits, loaded.encoder
        compiled = CompiledShapes(config.batching, limits.max_num_texts, self._buckets(limits.max_length), ())
        pricer = self._pricer(loaded, compiled)
        return ServedEngine(
            runner=PoolingRunner(encoder.runner, encoder.layers),
            scheduler=SchedulerConfig(limits.max_length, max_num_queued_reqs=config.max_num_queued_reqs),
            info=self._info(loaded, pricer, compiled),
            pricer=pricer,
            pooling=limits,
        )

    def _buckets(self, longest: int) -> tuple[int, ...]:
        """Return the compiled lengths. Raises SettingsError for a length beyond the longest text."""
        wanted = tuple(sorted(set(self._config.context_encoding_buckets)))
        if any(length > longest for length in wanted):
            raise SettingsError(f"context_encoding_buckets has {wanted[-1]}: 1 to max_model_len {longest} can be")
        return tuple(sorted({*wanted, longest})) if wanted else powers_of_two(longest)

    def _pricer(self, loaded: LoadedEncoder, compiled: CompiledShapes) -> EncodePricer:
        formats, tp = loaded.formats, self._config.tensor_parallel_size
        runtime = Runtime(stored_dtype(formats.quantization, formats.dtype))
        model = CostModel.of(loaded.placement.spec, self._instance, tp, runtime)
        return EncodePricer(model, compiled.slots, compiled.context_encoding, loaded.encoder.head.is_classifier)

    def _ledger(self, loaded: LoadedEncoder) -> MemoryLedger:
        """Return the account of the accelerator's memory on each core of the group."""
        device, tp, utilization = (
            self._instance,
            self._config.tensor_parallel_size,
            self._config.device_memory_utilization,
        )
        memory, per_chip = device.core_memory_bytes, device.chip.cores_per_chip
        ledger = MemoryLedger(memory, tp, per_chip, utilization, self._core_ids)
        for core in range(tp):
            for line in loaded.core_lines:
                ledger.reserve(core, *line)
        return ledger

    def _info(self, loaded: LoadedEncoder, pricer: EncodePricer, compiled: CompiledShapes) -> EngineInfo:
        config, spec, limits = self._config, loaded.placement.spec, loaded.limits
        encoder, ledger = loaded.encoder, self._ledger(loaded)
        weights, host_memory = main_format(spec, loaded.formats), host_bytes(loaded.placement.cores)
        notes = (
            f"{spec.architecture}, {num_params(spec) / 1e6:,.1f}M parameters in {weights}, texts of up to "
            f"{limits.max_length} tokens, {limits.max_num_tokens} in a step",
            *memory_notes(config, self._core_ids, ledger, host_memory, weights),
            *loaded.notes,
        )
        return EngineInfo(
            max_model_len=limits.max_length,
            cache=CacheConfig(0, loaded.placement.cache.block_size, enable_prefix_caching=False),
            max_num_queued_reqs=config.max_num_queued_reqs,
            device=config.device,
            tensor_parallel_size=config.tensor_parallel_size,
            dtype=config.dtype,
            vocab_size=spec.vocab_size,
            facts=engine_facts(Path(config.model_path), spec, loaded.formats, pricer, compiled, config.pace),
            core_ids=self._core_ids,
            kv_cache_dtype=loaded.placement.kv_dtype,
            core_names=tuple(ledger.core_name(core) for core in range(ledger.num_cores)),
            memory=tuple(core_memory(ledger, core) for core in range(ledger.num_cores)),
            host_memory=host_memory,
            notes=notes,
            generates=False,
            pooling=PoolingFacts(
                encoder.size,
                limits.max_length,
                encoder.head.pooling,
                encoder.head.is_normalized,
                encoder.head.labels,
                "; ".join(loaded.notes),
            ),
        )


def encode_config(config: EngineConfig) -> EncodeConfig:
    """Return the part of an engine's configuration that an encoder uses."""
    return EncodeConfig(
        model_path=config.model_path,
        device=config.device,
        tensor_parallel_size=config.tensor_parallel_size,
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        device_memory_utilization=config.device_memory_utilization,
        cpu_threads=config.cpu_threads,
        kernel_cache_dir=config.kernel_cache_dir,
        requested_formats=config.requested_formats,
        pooling=config.pooling,
        normalize=config.normalize,
        kernel_checks=config.kernel_checks,
        cpus=config.cpus,
        catalog=config.catalog,
        host_memory_bytes=config.data_parallel.host_memory_bytes,
    )
