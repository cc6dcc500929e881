"""Granite 3 without experts: Llama with multipliers of embeddings, scores, branches and logits."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from neuronserve.server.models.config_values import Values
from neuronserve.server.models.families.decoder import DecoderConfig

Multiplier = Annotated[float, Meta(gt=0.0, le=1e6)]


class GraniteConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of GraniteConfig."""

    embedding_multiplier: Multiplier = 1.0
    attention_multiplier: Multiplier = 1.0  # of scores, in the place of head_dim ** -0.5
    residual_multiplier: Multiplier = 1.0
    logits_scaling: Multiplier = 1.0  # logits are divided by it

    def features(self, values: Values) -> dict[str, Any]:
        return {
            **super().features(values),
            "embedding_scale": self.embedding_multiplier,
            "attention_scale": self.attention_multiplier,
            "residual_scale": self.residual_multiplier,
            "logit_scale": 1.0 / self.logits_scaling,
        }
