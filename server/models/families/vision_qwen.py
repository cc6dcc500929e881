"""Vision encoders of Qwen2-VL, 2.5 and 3. Source: transformers, models/{qwen2_vl,qwen2_5_vl,qwen3_vl}/modeling_*.py."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import replace as replace_fields

from ..config_values import Layers, Values, Width, read_record, refuse
from ..layer import RopeSpec
from ..names import Names
from ..vision import Connector, Join, PatchSpec, RowLinear, RowNorm, VisionSpec
from .vision_keys import Channels, Eyes, LayerIndex, Merge, Side, Text, Whole, linear

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


class _QwenEyes(Eyes, kw_only=True, rename={"num_layers": "depth", "channels": "in_channels"}):
    num_layers: Layers
    channels: Channels = 3
    spatial_merge_size: Merge = 2
    temporal_patch_size: Annotated[int, Meta(ge=1, le=8)] = 2

    def patch(self, **positions: Any) -> PatchSpec:
        return PatchSpec(
            self.patch_size,
            self.channels,
            RowLinear("visual.patch_embed.proj.weight", self.hidden_size, positions.pop("bias", "")),
            self.temporal_patch_size,
            square=self.spatial_merge_size,
            **positions,
        )


class _Qwen2Eyes(_QwenEyes, kw_only=True, rename={
    "num_layers": "depth", "channels": "in_channels", "hidden_size": "embed_dim"
}):  # fmt: skip
    hidden_size: Width
    mlp_ratio: Annotated[float, Meta(gt=0, le=64)] = 4.0


class _Qwen25Eyes(_QwenEyes, kw_only=True):
    window_size: Side = 112
    fullatt_block_indexes: tuple[LayerIndex, ...] = (7, 15, 23, 31)


class _Qwen3Eyes(_QwenEyes, kw_only=True):
    num_position_embeddings: Annotated[int, Meta(ge=1, le=1 << 20)] = 2304
    deepstack_visual_indexes: tuple[LayerIndex, ...] = (8, 16, 24)


def read_qwen2(eyes: Values, whole: Whole, text: Text) -> VisionSpec:
    """Return the encoder of Qwen2-VL: LayerNorm, no learned positions."""
    read = read_record(eyes, _Qwen2Eyes, "vision_config.")
    read = replace_fields(read, intermediate_size=int(read.hidden_size * read.mlp_ratio))
    words = {
        **dict(QWEN.words),
        "model.norm": "visual.merger.ln_q",
        "mlp.up_proj": "mlp.fc1",
        "mlp.down_proj": "mlp.fc2",
    }
    merge, at = read.spatial_merge_size, "visual.merger.mlp."
    mlp: Connector = (linear(f"{at}0", read.hidden_size * merge**2, "gelu"), linear(f"{at}2", text.hidden_size))
    layers, names = read.layers(RopeSpec(), has_bias=True, is_gated=False), Names.of(words, "visual.")
    tokens = whole.token_id(151_655), merge
    return VisionSpec(read.hidden_size, layers, 1e-6, False, names, read.patch(), (Join(merge), *mlp), *tokens)


def read_qwen25(eyes: Values, whole: Whole, text: Text) -> VisionSpec:
    """Return the encoder of Qwen2.5-VL: windows, RMSNorm, no learned positions."""
    read = read_record(eyes, _Qwen25Eyes, "vision_config.")
    window = read.window_size // read.spatial_merge_size // read.patch_size * read.spatial_merge_size
    if not window:
        raise refuse("vision_config.window_size", read.window_size, "less than a square of patches")
    words = {**dict(QWEN.words), "model.norm": "visual.merger.ln_q"}
    size = read.hidden_size * read.spatial_merge_size**2
    at = "visual.merger.mlp."
    mlp: Connector = (linear(f"{at}0", size, "gelu"), linear(f"{at}2", text.hidden_size))
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


def read_qwen3(eyes: Values, whole: Whole, text: Text) -> VisionSpec:
    """Return the encoder of Qwen3-VL: interpolated positions, and taps for the text's first layers."""
    read = read_record(eyes, _Qwen3Eyes, "vision_config.")
    words = {**dict(QWEN.words), "mlp.up_proj": "mlp.linear_fc1", "mlp.down_proj": "mlp.linear_fc2"}
    join = Join(read.spatial_merge_size)

    def mlp(at: str) -> Connector:
        size = read.hidden_size * read.spatial_merge_size**2
        return linear(f"{at}.linear_fc1", size, "gelu"), linear(f"{at}.linear_fc2", text.hidden_size)

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


def read_qwen35(eyes: Values, whole: Whole, text: Text) -> VisionSpec:
    """Return the encoder of Qwen3.5: that of Qwen3-VL without taps."""
    return replace(read_qwen3({**eyes, "deepstack_visual_indexes": ()}, whole, text), token_id=whole.token_id(248_056))
