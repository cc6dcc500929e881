"""The vision encoder of Gemma 4, as transformers has it in `modeling_gemma4`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from ..config_values import Epsilon, HeadDim, Heads, Layers, Values, read_record, refuse
from ..layer import AttentionSpec
from ..names import Names
from ..rope import read_rope
from ..vision import Average, PatchSpec, RowLinear, RowNorm, Standardize, VisionSpec
from .vision_keys import Eyes, HiddenAct, Merge, Text, Whole

AT = "vision_tower."
_MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_WORDS = {
    "model.layers": f"{AT}encoder.layers",
    **{name: f"{name}.linear" for name in (*_MODULES, "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")},
}


class _Gemma4Eyes(Eyes, kw_only=True, rename={
    "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "hidden_act": "hidden_activation"
}):  # fmt: skip
    num_layers: Layers
    num_heads: Heads
    hidden_act: HiddenAct
    num_key_value_heads: Heads = 12
    head_dim: HeadDim = 64
    rms_norm_eps: Epsilon = 1e-6
    pooling_kernel_size: Merge = 3
    position_embedding_size: Annotated[int, Meta(ge=1, le=1 << 20)] = 10_240
    use_clipped_linears: bool = False
    standardize: bool = False


def read_gemma4(eyes: Values, whole: Whole, text: Text) -> VisionSpec:
    """Return the encoder: rotations by column and row, norms before and after branches, averages of squares."""
    read = read_record(eyes, _Gemma4Eyes, "vision_config.")
    if read.use_clipped_linears:
        raise refuse("vision_config.use_clipped_linears", True, "not supported")
    if read.head_dim % 4 or read.num_heads % read.num_key_value_heads:
        reason = f"with {read.num_heads} heads of {read.head_dim}: heads need four equal parts and a share of them each"
        raise refuse("vision_config.num_key_value_heads", read.num_key_value_heads, reason)
    rope = read_rope({"rope_parameters": {**(eyes.get("rope_parameters") or {}), "rope_type": "default"}}, 1, 100.0)
    attention = AttentionSpec(
        read.num_heads,
        read.num_key_value_heads,
        read.head_dim,
        replace(rope, is_halved=True),
        qk_norm="head",
        scale=1.0,
        has_value_norm=True,
    )
    layers = read.layers(None, has_bias=False, is_gated=True)
    at, size = f"{AT}patch_embedder.", read.hidden_size
    standard = (f"{AT}std_bias", f"{AT}std_scale") if read.standardize else ("", "")
    return VisionSpec(
        size,
        tuple(replace(layer, mixer=attention, norms="before_and_after") for layer in layers),
        read.rms_norm_eps,
        True,
        Names.of(_WORDS, AT),
        PatchSpec(
            read.patch_size,
            read.channels,
            RowLinear(f"{at}input_proj.weight", size),
            positions="summed",
            table=f"{at}position_embedding_table",
            grid_side=read.position_embedding_size,
            pixel_scale=(2.0, -1.0),
        ),
        (
            Average(read.pooling_kernel_size),
            Standardize(size**0.5, *standard),
            RowNorm("", read.rms_norm_eps),
            RowLinear("embed_vision.embedding_projection.weight", text.hidden_size),
        ),
        whole.token_id(258_880),
        read.pooling_kernel_size,
        ends_normed=False,
        turns_by_columns=True,
        span_layers="with windows" if text.use_bidirectional_attention == "vision" else "none",
    )
