"""Sizes of a step's buffers for latent attention, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ..device.layout import FLOAT32_BYTES, K_MULTIPLE, N_TILE, round_up, vector_bytes
from ..models.layer import LatentAttentionSpec
from ..models.spec import ModelSpec
from .footprint import ServingShape
from .shard import ShardSpec


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """Bytes of each buffer: of the layer that needs most."""

    query_width: int  # elements of a token's narrow query
    queries: int  # float32 rows of it
    panels: int
    row_scales: int
    latents: int  # float32 rows, as the cache has them
    rows: int  # float32 of a core: a row for each head

    @classmethod
    def of(cls, model: ModelSpec, shard: ShardSpec, shape: ServingShape) -> LatentSizes | None:
        """Return the sizes; None for a model without latent attention."""
        mixers = [each for each in model.attentions if isinstance(each, LatentAttentionSpec)]
        if not mixers:
            return None
        tokens, width = round_up(shape.limits.num_tokens, N_TILE), max(each.query_rank for each in mixers)
        width, row = round_up(width, K_MULTIPLE), max(round_up(each.head_dim, N_TILE) for each in mixers)
        heads = max(shard.of_heads(each.heads).heads_per_core for each in mixers)
        return cls(
            query_width=width,
            queries=tokens * width * FLOAT32_BYTES,
            panels=tokens * width * shape.cell_bytes,
            row_scales=vector_bytes(tokens),
            latents=tokens * row * FLOAT32_BYTES,
            rows=tokens * heads * row * FLOAT32_BYTES,
        )

    def total(self, tp: int) -> int:
        """Return the bytes of all buffers over `tp` cores."""
        return self.queries + self.panels + self.row_scales + self.latents + tp * self.rows
