"""Loading of the encoder beside its decoder: weights, activations of its own, and the program of a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...config import AttentionSpan, CacheConfig
from ...device.core import NeuronCore
from ...errors import SettingsError
from ...kernels.compilation import compile_kernels
from ...kernels.workers import WorkerPool
from ...models.decoder import decoder_graph
from ...models.spec import ModelSpec
from ...placement.cache_layout import kv_slot_sizes
from ...placement.footprint import ServingShape
from ...placement.kv_groups import KVPlace
from ...placement.shard import ShardSpec
from ...placement.sound_sizes import SoundSizes
from ..attention_work import AttentionWork
from ..buffers import ActivationBuffers, ConstantTables, KVPool
from ..encode.distances import with_distances
from ..graph_slice import GraphSlice
from ..load.model_source import ModelSource
from ..load.weights import OnProgress, WeightLoader
from ..lowering import build_program
from ..operands import Placement
from ..step_inputs import StepInputs
from .encoder import SourceEncoder
from .sound import SoundStem


def place_encoder(
    model: ModelSource, cores: Sequence[NeuronCore], shape: ServingShape, on_progress: OnProgress
) -> Placement | None:
    """Load the encoder of a `model` that has one onto `cores`, without the embedding; `shape` is the decoder's.

    Raises CheckpointError, HostMemoryError, and SettingsError for settings that such models do not take.
    """
    encoder = model.spec.source
    if encoder is None:
        return None
    if shape.lora is not None:
        raise SettingsError(f"enable_lora: adapters of {encoder.architecture} are not supported")
    shard, own, length = ShardSpec.of(encoder, len(cores)), shape.of_source(encoder), encoder.max_position
    weights = WeightLoader(model.source, encoder, shard, cores, model.formats).load(on_progress, is_last=False)
    num_blocks = shape.num_source_blocks(encoder)
    cache = CacheConfig(num_blocks, shape.block_size, False, (AttentionSpan(), AttentionSpan()))
    sizes = kv_slot_sizes(encoder, shard, own.kv_dtype, shape.block_size)
    places = (KVPlace(0, 0),) * encoder.num_layers  # keys and values of one layer at a time
    placement = Placement(
        spec=encoder,
        shard=shard,
        cores=cores,
        weights=weights,
        tables=ConstantTables(cores, encoder, shard, length),
        buffers=ActivationBuffers(cores, encoder, shard, own),
        kv=KVPool.allocate(cores, places, num_blocks, sizes, "activations"),
        cache=cache,
        dtype=shape.dtype,
        kv_dtype=own.kv_dtype,
    )
    return with_distances(placement, length)


def source_encoder(
    encoder: Placement | None, decoder: Placement, shape: ServingShape, pool: WorkerPool, on_progress: OnProgress
) -> SourceEncoder | None:
    """Build the program of a placed encoder, which takes the decoder's embedding; compile the kernels that it adds."""
    if encoder is None:
        return None
    weights = decoder.weights
    tiles = weights.embedding_tiles(decoder_graph(decoder.spec))
    own = replace(encoder.weights, embedding=weights.embedding, embedded=tiles)
    at, sizes = replace(encoder, weights=own), SoundSizes.of(encoder.spec)
    stem = None if sizes is None else SoundStem(at, sizes, pool)
    part = GraphSlice(range(encoder.spec.num_layers), stem is None, "states")
    program = build_program(at, part=part, decoder=decoder)
    programs = (program,) if stem is None else (program, *stem.programs)
    compile_kernels([kernel for each in programs for kernel in each.kernels], on_progress, pool.num_threads)
    work = AttentionWork(encoder.buffers.sizes.attention.tile_tokens, 0, pool.num_threads)
    limits = shape.of_source(encoder.spec).limits.num_tokens, shape.limits.num_samples, encoder.spec.max_position
    inputs, longest = StepInputs(*limits, encoder.cache, work), encoder.spec.max_position
    return SourceEncoder(pool, program, inputs, shape.block_size, longest, stem)


def sound_shape(spec: ModelSpec) -> tuple[int, ...]:
    """Return the channels and frames of a window of sound; () for a model that reads none."""
    encoder = spec.source
    sizes = None if encoder is None else SoundSizes.of(encoder)
    return () if encoder is None or sizes is None else (encoder.stack.input.num_channels, sizes.frames)
