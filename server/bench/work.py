"""Work of a step at least: the bytes of weights it reads and the operations of its matrices."""

from __future__ import annotations

from server.engine.load.loading import LoadedEngine
from server.placement.matrices import PackedShape, packed_shapes
from server.placement.shard import ShardSpec


def weight_bytes_per_step(engine: LoadedEngine) -> int:
    """Bytes of packed weights that one decode step reads, over all cores; an untied embedding is left out."""
    layers, head = _matrices(engine)
    return engine.info.tensor_parallel_size * sum(m.num_bytes(engine.formats) for m in [*layers, head])


def prefill_operations(engine: LoadedEngine, num_tokens: int, num_samples: int) -> int:
    """Multiplications and additions of the matrices for `num_tokens` prompt tokens, `num_samples` of them sampled.

    Counted over all cores with the packed sizes of the matrices. Attention is left out.
    """
    layers, head = _matrices(engine)
    each = num_tokens * sum(m.n * m.k for m in layers) + num_samples * head.n * head.k
    return 2 * engine.info.tensor_parallel_size * each


def _matrices(engine: LoadedEngine) -> tuple[list[PackedShape], PackedShape]:
    """The layers', and the output layer."""
    shard = ShardSpec.of(engine.spec, engine.info.tensor_parallel_size)
    *layers, head = packed_shapes(engine.spec, shard)
    return layers, head
