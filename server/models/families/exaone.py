"""EXAONE 3.5: Llama under names of its own. EXAONE 4: norms behind branches and of heads; layers that slide rotate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from ..config_values import MAX_LAYERS, Epsilon, Layers, Positions, Values
from ..layer import NormPlacement, RopeSpec
from ..names import Names
from ..rope import read_rope
from .decoder import DecoderConfig
from .family import LayerType

EXAONE = Names.of(
    {
        "model.embed_tokens": "transformer.wte",
        "model.norm": "transformer.ln_f",
        "model.layers": "transformer.h",
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
        "self_attn": "attn.attention",
        "self_attn.o_proj": "attn.attention.out_proj",
        "gate_proj": "c_fc_0",
        "up_proj": "c_fc_1",
        "down_proj": "c_proj",
    },
    "transformer.",
    (".attention.rotary.inv_freq", ".rotary_emb.inv_freq"),
)


class ExaoneConfig(DecoderConfig, kw_only=True):
    """Keys and defaults of ExaoneConfig."""

    num_hidden_layers: Layers = field(default=32, name="num_layers")
    rms_norm_eps: Epsilon = field(default=1e-5, name="layer_norm_epsilon")
    hidden_act: Literal["silu"] = field(default="silu", name="activation_function")

    comes_with_code = True
    own_names = EXAONE


class Exaone4Config(DecoderConfig, kw_only=True):
    """Keys and defaults of Exaone4Config. Without a window all layers are rotated."""

    sliding_window: Positions | None = 4096
    sliding_window_pattern: Annotated[int, Meta(ge=0, le=MAX_LAYERS)] | str | None = 4  # "LLLG": a letter for each
    layer_types: list[LayerType] | None = None

    norm_placement: ClassVar[NormPlacement] = "after"
    qk_norm = "head"
    refused_biases = ("attention_bias", "mlp_bias")

    def windows(self) -> Sequence[int]:
        return self.sliding_windows(self.sliding_window, self._types())

    def ropes(self, values: Values) -> Sequence[RopeSpec | None]:
        rope, slides = read_rope(values, self.max_position_embeddings), self.sliding_window is not None
        return [None if slides and name == "full_attention" else rope for name in self._types()]

    def _types(self) -> list[LayerType]:
        if self.layer_types is not None:
            return self.layer_types
        every = self.sliding_window_pattern
        every = len(every) if isinstance(every, str) else every
        return self.types_by_period(every if every and self.sliding_window else 1)
