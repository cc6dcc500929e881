"""StarCoder (GPT-BigCode) and StarCoder 2: layer norms, biases, networks without a gate; one KV head or few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from msgspec import Meta, field

from ..config_values import MAX_POSITIONS, Epsilon, refuse
from ..layer import NetworkSpec
from ..names import Names
from .classic import GPT2, GPT2Config
from .decoder import DecoderConfig
from .family import ACTIVATIONS, ActivationName

BIGCODE = replace(GPT2, is_transposed=False)
STARCODER2 = Names.of({"up_proj": "c_fc", "down_proj": "c_proj"}, "model.")


class GPTBigCodeConfig(GPT2Config, kw_only=True):
    """Keys and defaults of GPTBigCodeConfig: all heads share keys and values, or each has its own beside it."""

    multi_query: bool = True

    def kv_heads(self) -> int:
        if self.num_key_value_heads not in (None, 1, self.num_attention_heads):
            raise refuse("num_key_value_heads", self.num_key_value_heads, "must be 1, or as many as heads")
        return 1 if self.multi_query else self.num_attention_heads

    def names(self) -> Names:
        return replace(BIGCODE, take_turns=not self.multi_query)


class Starcoder2Config(DecoderConfig, kw_only=True):
    """Keys and defaults of Starcoder2Config."""

    rms_norm_eps: Epsilon = field(default=1e-5, name="norm_epsilon")
    hidden_act: ActivationName = "gelu_pytorch_tanh"  # type: ignore[assignment]
    attention_bias: bool = field(default=True, name="use_bias")
    sliding_window: Annotated[int, Meta(ge=0, le=MAX_POSITIONS)] | None = None

    norm_kind = "layer"
    own_names = STARCODER2

    def windows(self) -> Sequence[int]:
        return self.on_all(self.sliding_window or 0)

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, ACTIVATIONS[self.hidden_act], is_gated=False, has_bias=self.attention_bias)
