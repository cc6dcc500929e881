"""Keys of models with a vision encoder that several families have."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ..config_values import Epsilon, Heads, Layers, Width, refuse
from ..layer import Activation, AttentionSpec, LayerSpec, NetworkSpec, RopeSpec
from ..vision import RowActivation, RowLinear

HiddenAct = Literal["gelu", "gelu_pytorch_tanh", "silu", "quick_gelu"]
ACTIVATIONS: dict[HiddenAct, RowActivation] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "quick_gelu": "quick_gelu",
}
Side = Annotated[int, Meta(ge=1, le=4096)]
Channels = Annotated[int, Meta(ge=1, le=4)]
Merge = Annotated[int, Meta(ge=1, le=16)]
TokenId = Annotated[int, Meta(ge=0, le=1 << 22)]
LayerIndex = Annotated[int, Meta(ge=0, le=1024)]


class Eyes(msgspec.Struct, kw_only=True):
    """Keys of `vision_config`, by their first names."""

    num_layers: Layers
    hidden_size: Width
    intermediate_size: Width
    num_heads: Heads
    patch_size: Side
    channels: Channels = 3
    hidden_act: HiddenAct = "gelu_pytorch_tanh"

    def layers(self, rope: RopeSpec | None, has_bias: bool, is_gated: bool) -> tuple[LayerSpec, ...]:
        """Return equal layers, each with its norms before the branches."""
        if self.hidden_size % self.num_heads:
            raise refuse("vision_config.hidden_size", self.hidden_size, f"not a multiple of {self.num_heads} heads")
        head_dim = self.hidden_size // self.num_heads
        if rope is not None and head_dim % 4:
            raise refuse("vision_config.hidden_size", self.hidden_size, f"heads of {head_dim} have no two equal halves")
        attention = AttentionSpec(
            self.num_heads, self.num_heads, head_dim, rope, has_qkv_bias=has_bias, has_o_bias=has_bias
        )
        activation: Activation = ACTIVATIONS[self.hidden_act]  # type: ignore[assignment]
        return (LayerSpec(attention, NetworkSpec(self.intermediate_size, activation, is_gated, has_bias)),) * (
            self.num_layers
        )


class Whole(msgspec.Struct, kw_only=True):
    """Keys of the whole model."""

    image_token_id: TokenId | None = None
    image_token_index: TokenId | None = None  # older name
    scale_factor: Merge = 2
    mm_tokens_per_image: Annotated[int, Meta(ge=1, le=1 << 16)] = 256
    spatial_merge_size: Merge = 2
    projector_hidden_act: HiddenAct = "gelu"
    multimodal_projector_bias: bool | None = None
    vision_feature_layer: Annotated[int, Meta(ge=-1024, le=-1)] | None = None
    vision_feature_select_strategy: Literal["default", "full"] | None = None

    def layers(self, found: tuple[LayerSpec, ...], default: int) -> tuple[LayerSpec, ...]:
        """Return the layers up to the one whose states are read, counted from the last, -1."""
        last = default if self.vision_feature_layer is None else self.vision_feature_layer
        if len(found) + last < 0:
            raise refuse("vision_feature_layer", last, f"the encoder has {len(found)} layers")
        return found[: len(found) + 1 + last]

    def token_id(self, default: int) -> int:
        """Return the id of a picture's placeholders."""
        named = self.image_token_index if self.image_token_id is None else self.image_token_id
        return default if named is None else named


class Text(msgspec.Struct):
    """Keys of the text's part."""

    hidden_size: Width
    rms_norm_eps: Epsilon = 1e-6
    use_bidirectional_attention: str | bool | None = None


def linear(module: str, outputs: int, activation: RowActivation = "identity", has_bias: bool = True) -> RowLinear:
    return RowLinear(f"{module}.weight", outputs, f"{module}.bias" if has_bias else "", activation)
