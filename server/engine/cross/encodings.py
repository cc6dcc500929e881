"""Encodings that cross attention reads: their blocks, behind those of sequences, and the price of a pass."""

from __future__ import annotations

from ...config import EngineConfig
from ...cost.encode_pricer import EncodePricer
from ...cost.encoding_pricer import EncodingPricer
from ...cost.model import CostModel
from ...cost.shape import stored_dtype
from ...cost.work import Runtime
from ...device.buckets import powers_of_two
from ...device.catalog import instance
from ...scheduler.encodings import EncodingLimits
from ..encodings import Encodings
from ..load.loading import LoadedEngine


def read_sources(config: EngineConfig, loaded: LoadedEngine) -> Encodings | None:
    """Return the encodings of a loaded model with an encoder beside its decoder; None for other models."""
    encoder, cache, formats = loaded.source, loaded.cache, loaded.formats
    if encoder is None:
        return None
    limits = EncodingLimits(
        block_size=cache.block_size,
        num_blocks=cache.num_source_blocks,
        first_block=cache.num_blocks,
        max_num_tokens=config.max_num_batched_tokens,
        check=encoder.refusal,
    )
    runtime = Runtime(stored_dtype(formats.quantization, formats.dtype))
    model = CostModel.of_source(loaded.spec, instance(config.device), config.tensor_parallel_size, runtime)
    longest = encoder.longest
    buckets = powers_of_two(longest) if encoder.stem is None else (longest,)
    return Encodings(encoder, limits, EncodingPricer(loaded.pricer, EncodePricer(model, 1, buckets)))
