"""BioGPT and XGLM: OPT's layers without its other options, under names of their own; XGLM has positions by sines."""

from __future__ import annotations

from dataclasses import replace

from msgspec import field

from ..config_values import Heads, Layers, Width, refuse
from ..names import Names
from ..spec import EmbeddingSpec
from .classic import OPT_PADDING_ROWS, OPTConfig
from .family import ActivationName

_WORDS = {
    "model.norm": "model.layer_norm",
    "self_attn.o_proj": "self_attn.out_proj",
    "mlp.up_proj": "fc1",
    "mlp.down_proj": "fc2",
    "input_layernorm": "self_attn_layer_norm",
    "post_attention_layernorm": "final_layer_norm",
}
_BIOGPT = {"model": "biogpt", **_WORDS, "model.norm": "biogpt.layer_norm", "lm_head": "output_projection"}
BIOGPT = Names.of(_BIOGPT, "biogpt.")
XGLM = replace(Names.of(_WORDS, "model."), sine_tables="model.embed_positions.weight", has_last_sine=True)


class BioGptConfig(OPTConfig, kw_only=True):
    """Keys and defaults of BioGptConfig."""

    intermediate_size: Width = 4096
    hidden_act: ActivationName = "gelu"
    scale_embedding: bool = True

    own_names = BIOGPT

    def embedding(self) -> EmbeddingSpec:
        return replace(super().embedding(), scale=self.hidden_size**0.5 if self.scale_embedding else 1.0)


class XGLMConfig(BioGptConfig, kw_only=True):
    """Keys and defaults of XGLMConfig."""

    hidden_size: Width = field(default=1024, name="d_model")
    intermediate_size: Width = field(default=4096, name="ffn_dim")
    num_hidden_layers: Layers = field(default=24, name="num_layers")
    num_attention_heads: Heads = field(default=16, name="attention_heads")
    hidden_act: ActivationName = field(default="gelu", name="activation_function")
    add_cross_attention: bool = False
    pad_token_id: int | None = 1

    own_names = XGLM

    def embedding(self) -> EmbeddingSpec:
        if self.add_cross_attention:
            raise refuse("add_cross_attention", True, "attention to another text is not supported")
        if (self.pad_token_id or 0) >= OPT_PADDING_ROWS:
            raise refuse("pad_token_id", self.pad_token_id, "a position without its sines is not supported")
        return super().embedding()
