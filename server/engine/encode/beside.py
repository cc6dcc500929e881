"""Encoding with a model that generates: a second program over its weights and activations, run between its steps.

It ends with the last states instead of logits. Keys and values live for one layer only, in a small pool of the cache's
type, so that no extra kernel is compiled. States are pooled by the mean and normalized, unless configured otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...config import CacheConfig, EngineConfig, PoolingLimits
from ...device.core import NeuronCore
from ...kernels.compilation import compile_kernels
from ...kernels.workers import WorkerPool
from ...link.messages import PoolingFacts
from ...models.decoder import decoder_graph
from ...models.heads import Head, Normalize
from ...models.spec import ModelSpec
from ...placement.cache_layout import kv_slot_sizes
from ...placement.footprint import ServingShape
from ...placement.kv_groups import KVPlace
from ...placement.shard import ShardSpec
from ...placement.state_layout import TEXT_SLOTS
from ..attention_work import AttentionWork
from ..buffers import KVPool
from ..graph_slice import GraphSlice
from ..load.weights import OnProgress
from ..lowering import build_program
from ..operands import Placement
from ..step_inputs import StepInputs
from .encoder import StateRunner
from .head import HeadLayers, normalized
from .runner import PoolingRunner

WEAK = "trained to continue texts: its vectors compare poorly"


@dataclass(frozen=True, slots=True)
class Beside:
    """Runner of texts beside a model's generation, and its limits."""

    runner: PoolingRunner
    limits: PoolingLimits
    facts: PoolingFacts


@dataclass(frozen=True, slots=True)
class LayerPool:
    """Keys and values of one layer, for the largest step of texts."""

    pool: KVPool
    cache: CacheConfig

    @classmethod
    def of(cls, cores: Sequence[NeuronCore], spec: ModelSpec, shard: ShardSpec, shape: ServingShape) -> LayerPool:
        """Allocate a pool on `cores`. Raises HostMemoryError."""
        num_blocks = shape.limits.num_text_blocks(shape.block_size)
        cache = CacheConfig(num_blocks, shape.block_size, enable_prefix_caching=False)
        sizes = kv_slot_sizes(spec, shard, shape.kv_dtype, shape.block_size)
        places = (KVPlace(0, 0),) * spec.num_layers
        return cls(KVPool.allocate(cores, places, num_blocks, sizes, "activations"), cache)


def encode_beside(
    placement: Placement, layer: LayerPool, config: EngineConfig, pool: WorkerPool, on_progress: OnProgress
) -> Beside:
    """Build the second program of a placed model, on the threads of the first; compile the kernels that it adds."""
    spec, buffers, block_size = placement.spec, placement.buffers, config.block_size
    states = placement.cache.num_states
    at = replace(placement, kv=layer.pool, cache=replace(layer.cache, num_states=states))
    program = build_program(at, part=GraphSlice.whole(decoder_graph(spec), leaves_states=True))
    compile_kernels(program.kernels, on_progress, pool.num_threads)
    max_length = min(config.max_num_batched_tokens, config.max_model_len or spec.longest)
    max_num_texts = min(config.max_num_seqs, TEXT_SLOTS) if states else config.max_num_seqs
    limits = PoolingLimits(max_num_texts, config.max_num_batched_tokens, max_length)
    work = AttentionWork(buffers.sizes.attention.tile_tokens, 0, pool.num_threads)
    inputs = StepInputs(limits.max_num_tokens, limits.max_num_texts, max_length, at.cache, work)
    hidden = buffers.hidden, buffers.widths.hidden, spec.hidden_size
    head = Head((config.pooling or "mean",), () if config.normalize is False else (Normalize(),))
    steps = (normalized,) if head.is_normalized else ()
    layers = HeadLayers(head, spec.hidden_size, steps, is_last_optional=head.is_normalized)
    runner = PoolingRunner(StateRunner(pool, program, inputs, block_size, hidden), layers)
    runner.warm_up()
    facts = PoolingFacts(
        spec.hidden_size, max_length, head.pooling, head.is_normalized, notice=f"{spec.architecture} was {WEAK}"
    )
    return Beside(runner, limits, facts)
