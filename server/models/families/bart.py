"""BART and encoder-decoders with its names: mBART, Marian, Pegasus, and Whisper, whose encoder reads sound."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from ..config_values import Epsilon, Heads, Layers, Positions, Values, Vocab, Width, refuse
from ..layer import AttentionSpec, LayerSpec, NetworkSpec, NormPlacement, RopeSpec
from ..names import Names
from ..spec import EmbeddingSpec, HeadSpec, ModelSpec, StackKind, StackSpec
from .family import ACTIVATIONS, ActivationName, FamilyConfig

PADDING_ROWS = 2  # rows of the positions' table before the first token's
# Tables that are the shared embedding's.
LEFTOVERS = ("coder.embed_tokens.weight", "lm_head.weight", "proj_out.weight")


def _names(stack: str, shared: str, is_normed_before: bool) -> Names:
    """Return the names of a stack; its embedding is the module `shared`."""
    at = f"model.{stack}"
    own, cross = "self_attn_layer_norm", "encoder_attn_layer_norm"
    before = {"input_layernorm": own, "post_attention_layernorm": "final_layer_norm"}
    after = {"post_attention_layernorm": own, "post_feedforward_layernorm": "final_layer_norm"}
    words = {
        "model.embed_tokens": shared,
        "model.embed_positions": f"{at}.embed_positions",
        "model.embed_norm": f"{at}.layernorm_embedding",
        "model.layers": f"{at}.layers",
        "model.norm": f"{at}.layer_norm",
        **{f"model.conv{i}": f"{at}.conv{i}" for i in (1, 2)},
        "self_attn.o_proj": "self_attn.out_proj",
        **{f"cross_attn.{name}_proj": f"encoder_attn.{name}_proj" for name in "qkv"},
        "cross_attn.o_proj": "encoder_attn.out_proj",
        "cross_attn_layernorm": cross,
        **(before if is_normed_before else after),
        "mlp.up_proj": "fc1",
        "mlp.down_proj": "fc2",
    }
    return replace(Names.of(words, "model.", LEFTOVERS), old_names=(("final_logits_bias", "lm_head.bias"),))


class BartConfig(FamilyConfig, kw_only=True):
    """Keys and defaults of BartConfig: learned positions, and norms after each branch."""

    hidden_size: Width = field(default=1024, name="d_model")
    intermediate_size: Width = field(default=4096, name="encoder_ffn_dim")
    num_hidden_layers: Layers = field(default=12, name="encoder_layers")
    num_attention_heads: Heads = field(default=16, name="encoder_attention_heads")
    rms_norm_eps: Epsilon = field(default=1e-5, name="layer_norm_eps")
    decoder_ffn_dim: Width = 4096
    decoder_layers: Layers = 12
    decoder_attention_heads: Heads = 16
    activation_function: ActivationName = "gelu"
    scale_embedding: bool = False
    tie_word_embeddings: Literal[True] = True
    share_encoder_decoder_embeddings: Literal[True] = True

    norm_placement: ClassVar[NormPlacement] = "stream"
    norm_kind = "layer"

    def __post_init__(self) -> None:
        self.rms_norm_eps = 1e-5  # the default of PyTorch: the family's code reads no key

    def spec(self, architecture: str, _values: Values) -> ModelSpec:
        heads = self.num_attention_heads
        if self.decoder_attention_heads != heads:
            raise refuse(
                "decoder_attention_heads", self.decoder_attention_heads, f"not encoder_attention_heads, {heads}"
            )
        encoder = replace(self._stack("encoder"), input=self.source(), max_length=self.source_length())
        return ModelSpec(
            architecture,
            (encoder, self._stack("decoder")),
            self.max_position(),
            self.head(),
            names=self._names("decoder"),
        )

    def _stack(self, kind: StackKind) -> StackSpec:
        is_decoder, attention = kind == "decoder", self.attention(None, 0)
        sizes = (
            (self.decoder_ffn_dim, self.decoder_layers)
            if is_decoder
            else (self.intermediate_size, self.num_hidden_layers)
        )
        cross = attention if is_decoder else None
        layer = LayerSpec(attention, self.network(sizes[0]), self.placement(), cross=cross)
        names = None if is_decoder else self._names(kind)
        return StackSpec(kind, self.hidden_size, self.embedding(), (layer,) * sizes[1], self.norm(), names=names)

    def _names(self, stack: str) -> Names:
        return _names(stack, self.shared(), self.placement() == "before")

    def shared(self) -> str:
        """Return the name of the module with the embedding."""
        return "model.shared"

    def embedding(self) -> EmbeddingSpec:
        scale = self.hidden_size**0.5 if self.scale_embedding else 1.0
        rows = self.max_position_embeddings + PADDING_ROWS
        return EmbeddingSpec(
            self.vocab_size, self.hidden_size, scale, num_positions=rows, first_position=PADDING_ROWS, has_norm=True
        )

    def source(self) -> EmbeddingSpec:
        """Return the input of the encoder."""
        return replace(self.embedding(), is_shared=True)

    def source_length(self) -> int:
        """Return the positions of the encoder; 0: as many as those of the decoder."""
        return 0

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), has_qkv_bias=True, has_o_bias=True)

    def network(self, size: int) -> NetworkSpec:
        return NetworkSpec(size, ACTIVATIONS[self.activation_function], is_gated=False, has_bias=True)

    def head(self) -> HeadSpec:
        return HeadSpec(is_tied=True, has_bias=True)


class MBartConfig(BartConfig, kw_only=True):
    """mBART: norms before each branch, and one after the last layer."""

    norm_placement = "before"


class MarianConfig(BartConfig, kw_only=True):
    """Marian: positions by sines, which files hold as a table, and no norm of the embedding."""

    decoder_vocab_size: Vocab | None = None

    def embedding(self) -> EmbeddingSpec:
        if self.decoder_vocab_size not in (None, self.vocab_size):
            raise refuse("decoder_vocab_size", self.decoder_vocab_size, f"not vocab_size, {self.vocab_size}")
        table = super().embedding()
        return replace(table, num_positions=self.max_position_embeddings, first_position=0, has_norm=False)

    def _names(self, stack: str) -> Names:
        return replace(super()._names(stack), sine_tables=".embed_positions.weight")


class PegasusConfig(MarianConfig, kw_only=True):
    """Pegasus: as Marian, with norms before each branch."""

    norm_placement = "before"


class WhisperConfig(MBartConfig, kw_only=True):
    """Whisper: two convolutions over frames of sound begin the encoder; keys have no bias."""

    max_position_embeddings: Positions = field(default=448, name="max_target_positions")
    num_mel_bins: Annotated[int, Meta(ge=1, le=1 << 12)] = 80
    max_source_positions: Annotated[int, Meta(ge=1, le=1 << 16)] = 1500

    def shared(self) -> str:
        return "model.decoder.embed_tokens"

    def embedding(self) -> EmbeddingSpec:
        rows = self.max_position_embeddings
        return replace(super().embedding(), num_positions=rows, first_position=0, has_norm=False)

    def source(self) -> EmbeddingSpec:
        rows = self.max_source_positions
        return EmbeddingSpec(0, self.hidden_size, num_positions=rows, is_shared=True, num_channels=self.num_mel_bins)

    def source_length(self) -> int:
        return self.max_source_positions

    def attention(self, rope: RopeSpec | None, window: int) -> AttentionSpec:
        return replace(super().attention(rope, window), lacks_k_bias=True)

    def head(self) -> HeadSpec:
        return HeadSpec(is_tied=True)
