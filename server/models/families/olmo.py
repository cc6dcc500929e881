"""OLMo 2 and 3: norms behind attention and feed-forward alone, and of queries and keys over all heads together."""

from __future__ import annotations

from typing import Any

from neuronserve.server.models.config_values import Epsilon, Positions, Values, Vocab
from neuronserve.server.models.families.decoder import DecoderConfig, LayerType
from neuronserve.server.models.rope import ropes_by_type

OLMO3_THETA = 500_000.0


class Olmo2Config(DecoderConfig, kw_only=True):
    """Keys and defaults of Olmo2Config."""

    vocab_size: Vocab = 50_304
    rms_norm_eps: Epsilon = 1e-5

    def features(self, values: Values) -> dict[str, Any]:
        return {
            **super().features(values),
            "has_pre_norms": False,
            "has_post_norms": True,
            "has_qk_norm": True,
            "has_wide_qk_norm": True,
        }


class Olmo3Config(Olmo2Config, kw_only=True):
    """Keys and defaults of Olmo3Config: three of four layers slide, and are rotated without the file's scaling."""

    sliding_window: Positions | None = 4096
    layer_types: list[LayerType] | None = None

    def features(self, values: Values) -> dict[str, Any]:
        return {**super().features(values), "windows": self.sliding_windows(self.sliding_window, self.types())}

    def types(self) -> list[LayerType]:
        """The type of each layer: every fourth attends to everything, where the file does not say."""
        return self.types_by_period(4) if self.layer_types is None else self.layer_types

    def ropes(self, values: Values) -> dict[str, Any]:
        local, whole = ropes_by_type(values, self.max_position_embeddings, OLMO3_THETA, OLMO3_THETA)
        return {"rope": whole, "ropes": tuple(local if name == "sliding_attention" else whole for name in self.types())}
