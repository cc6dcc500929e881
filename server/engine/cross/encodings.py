"""Budget and price of the encodings that cross attention reads. Their blocks lie behind those of sequences."""

from __future__ import annotations

from ...config import EngineConfig
from ...cost.encode_pricer import EncodePricer
from ...cost.model import CostModel
from ...cost.shape import stored_dtype
from ...cost.work import Runtime
from ...device.buckets import powers_of_two
from ...device.catalog import instance
from ...scheduler.encodings import EncodingLimits
from ..load.loading import LoadedEngine


def read_sources(config: EngineConfig, loaded: LoadedEngine) -> EncodingLimits | None:
    """Return the budget of a loaded model with an encoder beside its decoder; None for other models."""
    encoder, cache, formats = loaded.runner.encoder, loaded.cache, loaded.formats
    if encoder is None or not cache.max_source_len:
        return None
    runtime = Runtime(stored_dtype(formats.quantization, formats.dtype))
    model = CostModel.of_source(loaded.spec, instance(config.device), config.tensor_parallel_size, runtime)
    longest = cache.max_source_len
    loaded.pricer.encode = EncodePricer(model, 1, (longest,) if loaded.info.sound_shape else powers_of_two(longest)).run
    blocks = cache.num_source_blocks, cache.num_blocks
    return EncodingLimits(cache.block_size, *blocks, config.max_num_batched_tokens, encoder.refusal)
