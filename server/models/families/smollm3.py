"""SmolLM 3: every fourth layer is not rotated, and may slide where the others do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from ..config_values import Layers, Positions, Values
from ..layer import RopeSpec
from ..rope import read_rope
from .decoder import DecoderConfig
from .family import LayerType


class SmolLM3Config(DecoderConfig, kw_only=True):
    """Keys and defaults of SmolLM3Config."""

    no_rope_layers: list[Annotated[int, Meta(ge=0, le=1)]] | None = None  # 1: the layer is rotated
    no_rope_layer_interval: Layers = 4
    use_sliding_window: bool = False
    sliding_window: Positions | None = None
    layer_types: list[LayerType] | None = None

    def windows(self) -> Sequence[int]:
        if not self.use_sliding_window or self.sliding_window is None:
            return self.on_all(0)
        types = self.layer_types or ["full_attention" if turns else "sliding_attention" for turns in self._rotated()]
        return self.sliding_windows(self.sliding_window, types)

    def ropes(self, values: Values) -> Sequence[RopeSpec | None]:
        rope = read_rope(values, self.max_position_embeddings)
        return [rope if turns else None for turns in self._rotated()]

    def _rotated(self) -> Sequence[int]:
        return self.rotated_layers(self.no_rope_layers, self.no_rope_layer_interval)
