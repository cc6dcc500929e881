"""T5, T5 1.1, FLAN-T5, mT5: an encoder and a decoder with biases of scores by distance, and scores without a scale."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from msgspec import Meta, field

from ..config_values import Epsilon, HeadDim, Heads, Layers, Positions, Values, Width
from ..layer import Activation, AttentionSpec, NetworkSpec
from ..names import Names
from ..spec import HeadSpec, ModelSpec, StackSpec
from .family import FamilyConfig

Projection = Literal["relu", "gelu", "silu", "gated-relu", "gated-gelu", "gated-silu"]
ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "gelu": "gelu", "silu": "silu"}


def _names(stack: str, network: int, is_gated: bool) -> Names:
    """Return the names of a stack whose feed-forward network is part `network` of each layer."""
    words = {
        "model.embed_tokens": "shared",
        "model.layers": f"{stack}.block",
        "model.norm": f"{stack}.final_layer_norm",
        "model.relative_attention_bias": f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias",
        "input_layernorm": "layer.0.layer_norm",
        "cross_attn_layernorm": "layer.1.layer_norm",
        "post_attention_layernorm": f"layer.{network}.layer_norm",
        **{f"self_attn.{name}_proj": f"layer.0.SelfAttention.{name}" for name in "qkvo"},
        **{f"cross_attn.{name}_proj": f"layer.1.EncDecAttention.{name}" for name in "qkvo"},
        "mlp.gate_proj": f"layer.{network}.DenseReluDense.wi_0",
        "mlp.up_proj": f"layer.{network}.DenseReluDense.wi{'_1' if is_gated else ''}",
        "mlp.down_proj": f"layer.{network}.DenseReluDense.wo",
    }
    # Copies of the shared embedding, and a bias that old files of the first T5 have and no code reads.
    leftovers = "coder.embed_tokens.weight", "EncDecAttention.relative_attention_bias.weight"
    return Names.of(words, "", leftovers)


class T5Config(FamilyConfig, kw_only=True):
    """Keys and defaults of T5Config. `n_positions` is of older files; the model itself has no longest text."""

    hidden_size: Width = field(default=512, name="d_model")
    intermediate_size: Width = field(default=2048, name="d_ff")
    num_hidden_layers: Layers = field(default=6, name="num_layers")
    num_attention_heads: Heads = field(default=8, name="num_heads")
    max_position_embeddings: Positions = field(default=512, name="n_positions")
    rms_norm_eps: Epsilon = field(default=1e-6, name="layer_norm_epsilon")
    head_dim: HeadDim = field(default=64, name="d_kv")
    num_decoder_layers: Layers | None = None
    relative_attention_num_buckets: Annotated[int, Meta(ge=4, le=4096, multiple_of=4)] = 32
    relative_attention_max_distance: Annotated[int, Meta(ge=1, le=1 << 20)] = 128
    feed_forward_proj: Projection = "relu"
    tie_word_embeddings: bool = True

    def spec(self, architecture: str, values: Values) -> ModelSpec:
        encoder, layers = self.layers(values), self.num_decoder_layers or self.num_hidden_layers
        decoder = (replace(encoder[0], cross=self._plain_attention()),) * layers
        is_gated, table, norm = self.network(1).is_gated, self.embedding(), self.norm()
        stacks = (
            StackSpec(
                "encoder",
                self.hidden_size,
                replace(table, is_shared=True),
                encoder,
                norm,
                names=_names("encoder", 1, is_gated),
            ),
            StackSpec("decoder", self.hidden_size, table, decoder, norm),
        )
        return ModelSpec(architecture, stacks, self.max_position(), self.head(), names=_names("decoder", 2, is_gated))

    def attention(self, _rope: object, _window: int) -> AttentionSpec:
        buckets, distance = self.relative_attention_num_buckets, self.relative_attention_max_distance
        return replace(self._plain_attention(), num_distance_buckets=buckets, max_distance=distance)

    def _plain_attention(self) -> AttentionSpec:
        heads = self.num_attention_heads
        return AttentionSpec(heads, heads, self.head_dim, scale=1.0)

    def network(self, size: int) -> NetworkSpec:
        gated, _, name = self.feed_forward_proj.rpartition("-")
        is_tanh = self.feed_forward_proj == "gated-gelu"
        return NetworkSpec(size, "gelu_tanh" if is_tanh else ACTIVATIONS[name], is_gated=bool(gated))

    def head(self) -> HeadSpec:
        """Return the output layer. The states of a tied one are scaled, which T5 1.1 does not do."""
        is_tied = self.tie_word_embeddings
        return HeadSpec(is_tied, scale=self.hidden_size**-0.5 if is_tied else 1.0)
