"""Vision encoders that are served, by the architecture of the whole model. Defaults are those of transformers' classes.

Sources: transformers, models/{qwen2_5_vl,qwen3_vl,siglip,idefics3,gemma3,pixtral,mistral3}/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..config_values import Epsilon, Heads, Layers, Values, Width, read_record, refuse
from ..layer import Activation, AttentionSpec, LayerSpec, NetworkSpec, RopeSpec
from ..names import Names
from ..rope import read_rope
from ..vision import Average, Connector, Join, PatchSpec, RowActivation, RowLinear, RowNorm, VisionSpec

HiddenAct = Literal["gelu", "gelu_pytorch_tanh", "silu"]
ACTIVATIONS: dict[HiddenAct, RowActivation] = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu"}
Side = Annotated[int, Meta(ge=1, le=4096)]
Merge = Annotated[int, Meta(ge=1, le=16)]
TokenId = Annotated[int, Meta(ge=0, le=1 << 22)]
LayerIndex = Annotated[int, Meta(ge=0, le=1024)]
QWEN = Names.of(
    {
        "model.layers": "visual.blocks",
        "model.norm": "visual.merger.norm",
        "self_attn.q_proj": "attn.qkv",
        "self_attn.k_proj": "attn.qkv",
        "self_attn.v_proj": "attn.qkv",
        "self_attn.o_proj": "attn.proj",
        "input_layernorm": "norm1",
        "post_attention_layernorm": "norm2",
    },
    "visual.",
)


class _Eyes(msgspec.Struct, kw_only=True):
    """Keys of `vision_config`, by their first names."""

    num_layers: Layers
    hidden_size: Width
    intermediate_size: Width
    num_heads: Heads
    patch_size: Side
    channels: Annotated[int, Meta(ge=1, le=4)] = 3
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


class _QwenEyes(_Eyes, kw_only=True, rename={"num_layers": "depth", "channels": "in_channels"}):
    spatial_merge_size: Merge = 2
    temporal_patch_size: Annotated[int, Meta(ge=1, le=8)] = 2

    def patch(self, **positions: Any) -> PatchSpec:
        return PatchSpec(
            self.patch_size,
            self.channels,
            RowLinear("visual.patch_embed.proj.weight", positions.pop("bias", "")),
            self.temporal_patch_size,
            square=self.spatial_merge_size,
            **positions,
        )


class _Qwen25Eyes(_QwenEyes, kw_only=True):
    num_layers: Layers = 32
    hidden_size: Width = 3584
    intermediate_size: Width = 3420
    num_heads: Heads = 16
    patch_size: Side = 14
    hidden_act: HiddenAct = "silu"
    window_size: Side = 112
    fullatt_block_indexes: tuple[LayerIndex, ...] = (7, 15, 23, 31)


class _Qwen3Eyes(_QwenEyes, kw_only=True):
    num_layers: Layers = 27
    hidden_size: Width = 1152
    intermediate_size: Width = 4304
    num_heads: Heads = 16
    patch_size: Side = 16
    num_position_embeddings: Annotated[int, Meta(ge=1, le=1 << 20)] = 2304
    deepstack_visual_indexes: tuple[LayerIndex, ...] = (8, 16, 24)


class _SiglipEyes(_Eyes, kw_only=True, rename={
    "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "channels": "num_channels"
}):  # fmt: skip
    num_layers: Layers = 12
    hidden_size: Width = 768
    intermediate_size: Width = 3072
    num_heads: Heads = 12
    patch_size: Side = 16
    image_size: Side = 224
    layer_norm_eps: Epsilon = 1e-6


class _IdeficsEyes(_SiglipEyes, kw_only=True):
    hidden_size: Width = 1152
    num_heads: Heads = 16
    patch_size: Side = 32


class _PixtralEyes(_Eyes, kw_only=True, rename={
    "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "channels": "num_channels"
}):  # fmt: skip
    num_layers: Layers = 24
    hidden_size: Width = 1024
    intermediate_size: Width = 4096
    num_heads: Heads = 16
    patch_size: Side = 16
    hidden_act: HiddenAct = "gelu"


class _Whole(msgspec.Struct, kw_only=True):
    """Keys of the whole model."""

    image_token_id: TokenId | None = None
    image_token_index: TokenId | None = None  # older name
    scale_factor: Merge = 2
    mm_tokens_per_image: Annotated[int, Meta(ge=1, le=1 << 16)] = 256
    spatial_merge_size: Merge = 2
    projector_hidden_act: HiddenAct = "gelu"
    multimodal_projector_bias: bool = False
    vision_feature_layer: Literal[-1] = -1

    def token_id(self, default: int) -> int:
        """Return the id of a picture's placeholders."""
        named = self.image_token_index if self.image_token_id is None else self.image_token_id
        return default if named is None else named


def _linear(module: str, activation: RowActivation = "identity", has_bias: bool = True) -> RowLinear:
    return RowLinear(f"{module}.weight", f"{module}.bias" if has_bias else "", activation)


def _qwen25(eyes: Values, whole: _Whole, _: Values) -> VisionSpec:
    read = read_record(eyes, _Qwen25Eyes, "vision_config.")
    window = read.window_size // read.spatial_merge_size // read.patch_size * read.spatial_merge_size
    if not window:
        raise refuse("vision_config.window_size", read.window_size, "less than a square of patches")
    words = {**dict(QWEN.words), "model.norm": "visual.merger.ln_q"}
    mlp: Connector = (_linear("visual.merger.mlp.0", "gelu"), _linear("visual.merger.mlp.2"))
    return VisionSpec(
        read.hidden_size,
        read.layers(RopeSpec(), has_bias=True, is_gated=True),
        1e-6,
        True,
        Names.of(words, "visual."),
        read.patch(),
        (Join(read.spatial_merge_size), *mlp),
        whole.token_id(151_655),
        read.spatial_merge_size,
        window=window,
        full_layers=read.fullatt_block_indexes,
    )


def _qwen3(eyes: Values, whole: _Whole, _: Values) -> VisionSpec:
    read = read_record(eyes, _Qwen3Eyes, "vision_config.")
    words = {**dict(QWEN.words), "mlp.up_proj": "mlp.linear_fc1", "mlp.down_proj": "mlp.linear_fc2"}
    join = Join(read.spatial_merge_size)

    def mlp(at: str) -> Connector:
        return _linear(f"{at}.linear_fc1", "gelu"), _linear(f"{at}.linear_fc2")

    def tap(i: int) -> Connector:
        at = f"visual.deepstack_merger_list.{i}"
        return join, RowNorm(f"{at}.norm", 1e-6, has_bias=True), *mlp(at)

    taps = read.deepstack_visual_indexes
    if any(layer >= read.num_layers for layer in taps) or list(taps) != sorted(set(taps)):
        raise refuse("vision_config.deepstack_visual_indexes", list(taps), "must be ascending indices of layers")
    return VisionSpec(
        read.hidden_size,
        read.layers(RopeSpec(), has_bias=True, is_gated=False),
        1e-6,
        False,
        Names.of(words, "visual."),
        read.patch(
            bias="visual.patch_embed.proj.bias",
            positions="interpolated",
            table="visual.pos_embed.weight",
            grid_side=isqrt(read.num_position_embeddings),
        ),
        (join, *mlp("visual.merger")),
        whole.token_id(151_655),
        read.spatial_merge_size,
        tuple((layer, tap(i)) for i, layer in enumerate(taps)),
    )


def _siglip(read: _SiglipEyes, at: str, connector: Connector, tokens: tuple[int, int], **patch: Any) -> VisionSpec:
    """SigLIP with modules below `at`: learned positions, LayerNorm, biases everywhere."""
    words = {
        "model.layers": f"{at}encoder.layers",
        "model.norm": f"{at}post_layernorm",
        "self_attn.o_proj": "self_attn.out_proj",
        "input_layernorm": "layer_norm1",
        "post_attention_layernorm": "layer_norm2",
        "mlp.up_proj": "mlp.fc1",
        "mlp.down_proj": "mlp.fc2",
    }
    patches = PatchSpec(
        read.patch_size,
        read.channels,
        _linear(f"{at}embeddings.patch_embedding"),
        **patch,
        table=f"{at}embeddings.position_embedding.weight",
        grid_side=read.image_size // read.patch_size,
    )
    layers, names = read.layers(None, has_bias=True, is_gated=False), Names.of(words, at)
    return VisionSpec(read.hidden_size, layers, read.layer_norm_eps, False, names, patches, connector, *tokens)


def _idefics3(eyes: Values, whole: _Whole, _: Values) -> VisionSpec:
    read = read_record(eyes, _IdeficsEyes, "vision_config.")
    join, project = Join(whole.scale_factor), _linear("connector.modality_projection.proj", has_bias=False)
    tokens = whole.token_id(128_257), whole.scale_factor
    return _siglip(read, "vision_model.", (join, project), tokens, positions="nearest")


def _gemma3(eyes: Values, whole: _Whole, _: Values) -> VisionSpec:
    read = read_record(eyes, _SiglipEyes, "vision_config.")
    side, tokens = read.image_size // read.patch_size, isqrt(whole.mm_tokens_per_image)
    if tokens * tokens != whole.mm_tokens_per_image or side % tokens:
        reason = f"must be a square whose side divides the {side} patches of a picture's side"
        raise refuse("mm_tokens_per_image", whole.mm_tokens_per_image, reason)
    at = "multi_modal_projector.mm_"
    norm = RowNorm(f"{at}soft_emb_norm", read.layer_norm_eps, offset=1.0)
    project = RowLinear(f"{at}input_projection_weight", is_transposed=True)
    connector = Average(side // tokens), norm, project
    placeholders = whole.token_id(262_144), side // tokens
    return _siglip(read, "vision_tower.", connector, placeholders, positions="in order")


def _mistral3(eyes: Values, whole: _Whole, text: Values) -> VisionSpec:
    read = read_record(eyes, _PixtralEyes, "vision_config.")
    at, names = "multi_modal_projector.", {
        "model.layers": "vision_tower.transformer.layers",
        "model.norm": "multi_modal_projector.norm",
        "self_attn": "attention",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp": "feed_forward",
    }  # fmt: skip
    has_bias, eps = whole.multimodal_projector_bias, read_record(text, _TextNorm, "text_config.").rms_norm_eps
    connector: Connector = (
        RowNorm(f"{at}norm", eps),
        Join(whole.spatial_merge_size, by_channel=True),
        _linear(f"{at}patch_merger.merging_layer", has_bias=False),
        _linear(f"{at}linear_1", ACTIVATIONS[whole.projector_hidden_act], has_bias),
        _linear(f"{at}linear_2", has_bias=has_bias),
    )
    rope = read_rope({**eyes, "rope_parameters": {**(eyes.get("rope_parameters") or {}), "rope_type": "default"}}, 1)
    return VisionSpec(
        read.hidden_size,
        read.layers(rope, has_bias=False, is_gated=True),
        1e-5,
        True,
        Names.of(names, "vision_tower."),
        PatchSpec(
            read.patch_size,
            read.channels,
            _linear("vision_tower.patch_conv", has_bias=False),
            norm=RowNorm("vision_tower.ln_pre", 1e-5),
        ),
        connector,
        whole.token_id(10),
        whole.spatial_merge_size,
        ends_normed=False,
        turns_by_turns=True,
    )


class _TextNorm(msgspec.Struct):
    rms_norm_eps: Epsilon = 1e-6


_READERS: dict[str, Callable[[Values, _Whole, Values], VisionSpec]] = {
    "Qwen2_5_VLForConditionalGeneration": _qwen25,
    "Qwen3VLForConditionalGeneration": _qwen3,
    "Qwen3VLMoeForConditionalGeneration": _qwen3,
    "SmolVLMForConditionalGeneration": _idefics3,
    "Idefics3ForConditionalGeneration": _idefics3,
    "Gemma3ForConditionalGeneration": _gemma3,
    "Mistral3ForConditionalGeneration": _mistral3,
}


def vision_of(config: Values) -> VisionSpec | None:
    """Return the vision encoder of the whole model's configuration; None where there is none that is served.

    Raises ConfigError for values of a known encoder that are out of range or not implemented.
    """
    names, eyes = config.get("architectures"), config.get("vision_config")
    reader = _READERS.get(names[0]) if isinstance(names, list) and names and isinstance(names[0], str) else None
    if reader is None or not isinstance(eyes, dict):
        return None
    return reader(eyes, read_record(config, _Whole), config.get("text_config") or {})
