"""Loading of a vision encoder beside the text's model: onto the first core, in the unquantized type or in int8."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...checkpoint.checkpoint import Checkpoint
from ...config import CacheConfig
from ...device.attention_layout import CHUNK
from ...device.core import NeuronCore
from ...kernels.compilation import compile_kernels
from ...kernels.workers import WorkerPool
from ...models.decoder import decoder_graph
from ...models.spec import ModelSpec
from ...models.vision import Connector, VisionSpec
from ...placement.cache_layout import kv_slot_sizes
from ...placement.footprint import ServingShape, vision_blocks, vision_shape
from ...placement.kv_groups import KVPlace
from ...placement.shard import ShardSpec
from ..attention_work import AttentionWork
from ..buffers import ActivationBuffers, ConstantTables, KVPool
from ..graph_slice import GraphSlice
from ..load.checkpoint_weights import CheckpointWeights
from ..load.weights import OnProgress, WeightLoader
from ..lowering import build_program
from ..operands import Placement
from ..step_inputs import StepInputs
from .connector import load_connector, load_tensor
from .products import Products
from .tower import PatchLayers, Stage, VisionTower


class VisionLoader:
    """Loads the encoder of `spec` in steps: weights early, programs when the pool of threads exists."""

    def __init__(self, directory: Path, spec: ModelSpec, core: NeuronCore, shape: ServingShape) -> None:
        """Open the files. Raises CheckpointError when tensors of the encoder are missing or misshapen."""
        assert spec.vision is not None
        self._vision: VisionSpec = spec.vision
        self._encoder, self._core, self._shape = spec.vision_encoder, core, vision_shape(spec, shape)
        self._shard = ShardSpec.of(self._encoder, 1)
        self._checkpoint = Checkpoint.open(directory, self._encoder, None)

    def place(self, on_progress: OnProgress) -> Placement:
        """Load the weights and allocate all memory. Raises CheckpointError and HostMemoryError."""
        spec, shard, shape, cores = self._encoder, self._shard, self._shape, [self._core]
        source = CheckpointWeights(self._checkpoint, shard, shape.formats, shape.limits.num_workers)
        weights = WeightLoader(source, spec, shard, cores, shape.formats).load(
            lambda line: on_progress(f"vision encoder: {line}")
        )
        cache = CacheConfig(vision_blocks(shape.max_model_len)[0], CHUNK, enable_prefix_caching=False)
        sizes = kv_slot_sizes(spec, shard, shape.kv_dtype, CHUNK)
        places = (KVPlace(0, 0),) * spec.num_layers
        return Placement(
            spec=spec,
            shard=shard,
            cores=cores,
            weights=weights,
            tables=ConstantTables(cores, spec, shard, shape.max_model_len),
            buffers=ActivationBuffers(cores, spec, shard, shape),
            kv=KVPool.allocate(cores, places, cache.num_blocks, sizes, "activations"),
            cache=cache,
            dtype=shape.dtype,
            kv_dtype=shape.kv_dtype,
        )

    def tower(self, at: Placement, pool: WorkerPool, width: int, on_progress: OnProgress) -> VisionTower:
        """Build the programs and compile their kernels; `width` is that of the text's stream."""
        patch, shape, checkpoint = self._vision.patch, self._shape, self._checkpoint
        products = Products(at, pool, self._vision)
        stages = tuple(self._stages(at, products))
        kernels = [*products.kernels, *(kernel for stage in stages for kernel in stage.program.kernels)]
        compile_kernels(kernels, on_progress, pool.num_threads)
        work = AttentionWork(at.buffers.sizes.attention.tile_tokens, 0, pool.num_threads)
        patches = shape.max_model_len
        inputs = StepInputs(patches, vision_blocks(patches)[1], patches, at.cache, work)
        layers = PatchLayers(
            load_connector((patch.projection,), checkpoint, products, patch.square),
            None if patch.norm is None else load_connector((patch.norm,), checkpoint, products, patch.square),
            load_tensor(checkpoint, patch.table) if patch.table else None,
            load_tensor(checkpoint, patch.class_token).reshape(1, -1) if patch.class_token else None,
        )
        return VisionTower(at, pool, inputs, (layers, stages), (self._vision, width))

    def _stages(self, at: Placement, products: Products) -> Iterator[Stage]:
        vision, num_layers, first = self._vision, self._encoder.num_layers, 0
        taps = dict(vision.taps)
        graph = decoder_graph(self._encoder)
        for layer in range(num_layers):
            is_full, is_last = self._is_full(layer), layer + 1 == num_layers
            if is_last or layer in taps or self._is_full(layer + 1) != is_full:
                if layer in taps:
                    yield self._stage(
                        at, products, GraphSlice(range(first, layer + 1), False, "stream"), is_full, taps[layer]
                    )
                    first = layer + 1
                if is_last or layer not in taps:
                    ends_normed = is_last and vision.ends_normed
                    part = GraphSlice(range(first, layer + 1), False, "states" if ends_normed else "stream")
                    part.require_kernels(graph)
                    yield self._stage(at, products, part, is_full, vision.connector if is_last else None)
                first = layer + 1

    def _is_full(self, layer: int) -> bool:
        return not self._vision.window or layer in self._vision.full_layers

    def _stage(
        self, at: Placement, products: Products, part: GraphSlice, is_full: bool, connector: Connector | None
    ) -> Stage:
        square, steps = self._vision.patch.square, None
        if connector is not None:
            steps = load_connector(connector, self._checkpoint, products, square)
        return Stage(build_program(at, part=part), is_full, steps)
