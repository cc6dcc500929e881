"""Gemma 3 (text): Gemma 2 with norms of heads instead of caps; local layers have a rotary base of their own."""

from __future__ import annotations

from typing import Any

from neuronserve.server.models.config_values import Layers, Positions, Values, Vocab
from neuronserve.server.models.families.decoder import LayerType
from neuronserve.server.models.families.gemma import Cap, Gemma2Config
from neuronserve.server.models.rope import Theta, ropes_by_type

GLOBAL_THETA = 1_000_000.0


class Gemma3Config(Gemma2Config, kw_only=True):
    """Keys and defaults of Gemma3TextConfig."""

    vocab_size: Vocab = 262_208
    max_position_embeddings: Positions = 131_072
    sliding_window_pattern: Layers = 6  # every so manieth layer is global, where there is no layer_types
    rope_local_base_freq: Theta = 10_000.0
    final_logit_softcapping: Cap | None = None

    def features(self, values: Values) -> dict[str, Any]:
        # Scores are not capped, whatever a key says: the code of the family reads none.
        return {**super().features(values), "has_qk_norm": True, "score_cap": 0.0}

    def types(self) -> list[LayerType]:
        return self.types_by_period(self.sliding_window_pattern) if self.layer_types is None else self.layer_types

    def ropes(self, values: Values) -> dict[str, Any]:
        local, whole = ropes_by_type(values, self.max_position_embeddings, self.rope_local_base_freq, GLOBAL_THETA)
        return {"rope": whole, "ropes": tuple(local if name == "sliding_attention" else whole for name in self.types())}
