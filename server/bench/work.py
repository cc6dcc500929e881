"""Least work of a step: the bytes of weights and cache that it reads, and the operations of its matrices."""

from __future__ import annotations

from ..engine.load.loading import LoadedEngine
from ..models.spec import ModelSpec
from ..placement.matrices import PackedShape, packed_shapes
from ..placement.shard import ShardSpec


def chosen_share(model: ModelSpec, num_tokens: int) -> float:
    """Share of a layer's experts that `num_tokens` tokens use, if all experts are equally likely."""
    experts = model.experts
    return 1.0 if experts is None else 1 - (1 - experts.per_token / experts.count) ** num_tokens


def weight_bytes_per_step(engine: LoadedEngine, batch: int) -> float:
    """Bytes of packed weights that a decode step of `batch` tokens reads, over all cores.

    An untied embedding and experts without a token are left out.
    """
    layers, head = _matrices(engine)
    read = sum(_share(engine.spec, m, batch) * m.num_bytes(engine.formats) for m in [*layers, head])
    return engine.info.tensor_parallel_size * read


def cache_bytes_per_step(engine: LoadedEngine, batch: int, num_tokens: int) -> int:
    """Bytes of keys and values that a decode step of `batch` sequences of `num_tokens` tokens reads, over all cores."""
    model, cache, kv = engine.spec, engine.cache, engine.placement.kv
    largest = max(each.num_kv_heads * each.head_dim for each in model.attentions)
    seen = sum(
        (num_tokens - each.span.num_behind(num_tokens - 1)) * each.num_kv_heads * each.head_dim
        for each in model.attention_layers
    )
    slots = cache.num_blocks * cache.block_size  # tokens whose K and V of the largest layer a core holds
    return batch * len(kv.shards) * seen * kv.num_tensors * kv.tensor_bytes // (slots * largest)


def _share(model: ModelSpec, matrix: PackedShape, num_tokens: int) -> float:
    """Share of a layer's matrices of this kind that is read, on average."""
    return chosen_share(model, num_tokens) if matrix.linear.is_of_expert else 1.0


def prefill_operations(engine: LoadedEngine, num_tokens: int, num_samples: int) -> float:
    """Multiplications and additions of the matrices for `num_tokens` prompt tokens, `num_samples` of them sampled.

    Counted over all cores with the packed sizes of the matrices. Attention is left out.
    """
    layers, head = _matrices(engine)
    each = num_tokens * sum(_share(engine.spec, m, 1) * m.n * m.k for m in layers) + num_samples * head.n * head.k
    return 2 * engine.info.tensor_parallel_size * each


def _matrices(engine: LoadedEngine) -> tuple[list[PackedShape], PackedShape]:
    """Return the matrices of the layers, and the output layer."""
    shard = ShardSpec.of(engine.spec, engine.info.tensor_parallel_size)
    *layers, head = packed_shapes(engine.spec, shard)
    return layers, head
