"""Vision encoders that are served, by the architecture of the whole model. Defaults are those of transformers' classes.

Sources: transformers, models/{siglip,clip,idefics3,gemma3,llama4,pixtral,mistral3,llava}/modeling_*.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isqrt
from typing import Annotated, Any

from msgspec import Meta

from ..config_values import Epsilon, Heads, Layers, Values, Width, read_record, refuse
from ..layer import RopeSpec
from ..names import Names
from ..rope import read_rope
from ..vision import Average, Connector, Join, PatchSpec, RowLinear, RowNorm, VisionSpec
from .vision_gemma4 import read_gemma4
from .vision_keys import ACTIVATIONS, Channels, Eyes, Side, Text, Whole, linear
from .vision_qwen import read_qwen2, read_qwen3, read_qwen25, read_qwen35


class _SiglipEyes(Eyes, kw_only=True, rename={
    "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "channels": "num_channels"
}):  # fmt: skip
    num_layers: Layers  # again, as all renamed fields: a parent's fields keep their names
    num_heads: Heads
    channels: Channels = 3
    image_size: Side = 224
    layer_norm_eps: Epsilon = 1e-6


class _IdeficsEyes(_SiglipEyes, kw_only=True):
    """Keys of the vision encoder of Idefics 3."""


class _PixtralEyes(Eyes, kw_only=True, rename={
    "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "channels": "num_channels"
}):  # fmt: skip
    num_layers: Layers
    num_heads: Heads
    channels: Channels = 3


class _ClipEyes(_SiglipEyes, kw_only=True):
    layer_norm_eps: Epsilon = 1e-5


class _Llama4Eyes(_SiglipEyes, kw_only=True):
    image_size: Side = 448
    pixel_shuffle_ratio: Annotated[float, Meta(ge=1 / 16, le=1.0)] = 0.5
    projector_input_dim: Width = 4096
    projector_output_dim: Width = 4096
    vision_output_dim: Width = 7680


def _siglip(read: _SiglipEyes, at: str, connector: Connector, tokens: tuple[int, int], **patch: Any) -> VisionSpec:
    """SigLIP or CLIP with modules below `at`: learned positions, LayerNorm, biases everywhere but CLIP's at patches."""
    words = {
        "model.layers": f"{at}encoder.layers",
        "model.norm": f"{at}post_layernorm",
        "self_attn.o_proj": "self_attn.out_proj",
        "input_layernorm": "layer_norm1",
        "post_attention_layernorm": "layer_norm2",
        "mlp.up_proj": "mlp.fc1",
        "mlp.down_proj": "mlp.fc2",
    }
    if isinstance(read, _ClipEyes):
        norm = RowNorm(f"{at}pre_layrnorm", read.layer_norm_eps, has_bias=True)
        patch |= {"class_token": f"{at}embeddings.class_embedding", "norm": norm}
    patches = PatchSpec(
        read.patch_size,
        read.channels,
        linear(f"{at}embeddings.patch_embedding", read.hidden_size, has_bias="class_token" not in patch),
        **patch,
        table=f"{at}embeddings.position_embedding.weight",
        grid_side=read.image_size // read.patch_size,
    )
    layers, names = read.layers(None, has_bias=True, is_gated=False), Names.of(words, at)
    return VisionSpec(read.hidden_size, layers, read.layer_norm_eps, False, names, patches, connector, *tokens)


def _idefics3(eyes: Values, whole: Whole, text: Text) -> VisionSpec:
    read = read_record(eyes, _IdeficsEyes, "vision_config.")
    join, project = (
        Join(whole.scale_factor),
        linear("connector.modality_projection.proj", text.hidden_size, has_bias=False),
    )
    tokens = whole.token_id(128_257), whole.scale_factor
    return _siglip(read, "vision_model.", (join, project), tokens, positions="nearest")


def _gemma3(eyes: Values, whole: Whole, text: Text) -> VisionSpec:
    read = read_record(eyes, _SiglipEyes, "vision_config.")
    side, tokens = read.image_size // read.patch_size, isqrt(whole.mm_tokens_per_image)
    if tokens * tokens != whole.mm_tokens_per_image or side % tokens:
        reason = f"must be a square whose side divides the {side} patches of a picture's side"
        raise refuse("mm_tokens_per_image", whole.mm_tokens_per_image, reason)
    at = "multi_modal_projector.mm_"
    norm = RowNorm(f"{at}soft_emb_norm", read.layer_norm_eps, offset=1.0)
    project = RowLinear(f"{at}input_projection_weight", text.hidden_size, is_transposed=True)
    connector = Average(side // tokens), norm, project
    placeholders = whole.token_id(262_144), side // tokens
    vision = _siglip(read, "vision_tower.", connector, placeholders, positions="in order")
    return replace(vision, span_layers="all")


def _projector(whole: Whole, size: int, has_bias: bool) -> Connector:
    """Two linear layers."""
    at, has_bias = "multi_modal_projector.", has_bias if (own := whole.multimodal_projector_bias) is None else own
    first = linear(f"{at}linear_1", size, ACTIVATIONS[whole.projector_hidden_act], has_bias)
    return first, linear(f"{at}linear_2", size, has_bias=has_bias)


def _rope(eyes: Values) -> RopeSpec:
    return read_rope({**eyes, "rope_parameters": {**(eyes.get("rope_parameters") or {}), "rope_type": "default"}}, 1)


def _pixtral(eyes: Values, read: _PixtralEyes, connector: Connector, tokens: tuple[int, int]) -> VisionSpec:
    """Pixtral, without a norm after the layers."""
    names = {
        "model.layers": "vision_tower.transformer.layers",
        "self_attn": "attention",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp": "feed_forward",
    }
    return VisionSpec(
        read.hidden_size,
        read.layers(_rope(eyes), has_bias=False, is_gated=True),
        1e-5,
        True,
        Names.of(names, "vision_tower."),
        PatchSpec(
            read.patch_size,
            read.channels,
            linear("vision_tower.patch_conv", read.hidden_size, has_bias=False),
            norm=RowNorm("vision_tower.ln_pre", 1e-5),
        ),
        connector,
        *tokens,
        ends_normed=False,
        turns_by_turns=True,
    )


def _mistral3(eyes: Values, whole: Whole, text: Text) -> VisionSpec:
    read = read_record(eyes, _PixtralEyes, "vision_config.")
    at = "multi_modal_projector."
    merge: Connector = (
        RowNorm(f"{at}norm", text.rms_norm_eps),
        Join(whole.spatial_merge_size, by_channel=True),
        linear(f"{at}patch_merger.merging_layer", read.hidden_size, has_bias=False),
    )
    tokens = whole.token_id(10), whole.spatial_merge_size
    vision = _pixtral(eyes, read, (*merge, *_projector(whole, text.hidden_size, has_bias=False)), tokens)
    return replace(vision, layers=whole.layers(vision.layers, -1))


def _llama4(eyes: Values, whole: Whole, text: Text) -> VisionSpec:
    """Rotations by column and row, and a class token behind the patches; activation and eps have no key."""
    read = read_record({**eyes, "hidden_act": "gelu"}, _Llama4Eyes, "vision_config.")
    side, merge = read.image_size // read.patch_size, round(1 / read.pixel_shuffle_ratio)
    if merge * read.pixel_shuffle_ratio != 1.0 or side % merge:
        reason = f"must be 1 / n, where n divides the {side} patches of a picture's side"
        raise refuse("vision_config.pixel_shuffle_ratio", read.pixel_shuffle_ratio, reason)
    size = read.projector_output_dim
    equal = {"intermediate_size": read.hidden_size * merge**2, "projector_input_dim": size, "vision_output_dim": size}
    for name, expected in equal.items():
        if (value := getattr(read, name)) != expected:
            raise refuse(f"vision_config.{name}", value, f"must be {expected} beside the other sizes")
    at, adapter = "vision_model.", "vision_model.vision_adapter.mlp.fc"
    names = {
        "model.layers": f"{at}model.layers",
        "model.norm": f"{at}layernorm_post",
        "mlp.up_proj": "mlp.fc1",
        "mlp.down_proj": "mlp.fc2",
    }
    patch = PatchSpec(
        read.patch_size,
        read.channels,
        linear(f"{at}patch_embedding.linear", read.hidden_size, has_bias=False),
        positions="in order",
        table=f"{at}positional_embedding_vlm",
        grid_side=side,
        norm=RowNorm(f"{at}layernorm_pre", 1e-5, has_bias=True),
        class_token=f"{at}class_embedding",
        is_class_last=True,
    )
    layers = read.layers(replace(_rope(eyes), is_interleaved=True), has_bias=True, is_gated=False)
    mlp = (linear(f"{adapter}{i}", size, "gelu", has_bias=False) for i in (1, 2))
    project = linear("multi_modal_projector.linear_1", text.hidden_size, has_bias=False)
    tokens = whole.token_id(200_092), merge
    vision = VisionSpec(
        read.hidden_size, layers, 1e-5, False, Names.of(names, at), patch, (Join(merge), *mlp, project), *tokens
    )
    return replace(vision, turns_by_columns=True)


def _llava(eyes: Values, whole: Whole, text: Text) -> VisionSpec | None:
    """CLIP without the states of its class token, or all states of SigLIP or Pixtral; None for others."""
    kind, strategy = eyes.get("model_type", "clip_vision_model"), whole.vision_feature_select_strategy or "default"
    has_class = kind == "clip_vision_model"
    is_known = has_class or kind in ("siglip_vision_model", "pixtral")
    if not is_known or has_class != (strategy == "default"):
        return None
    connector, tokens = _projector(whole, text.hidden_size, has_bias=True), (whole.token_id(32_000), 1)
    if kind == "pixtral":
        vision = _pixtral(eyes, read_record(eyes, _PixtralEyes, "vision_config."), connector, tokens)
    else:
        read = read_record(eyes, _ClipEyes if has_class else _SiglipEyes, "vision_config.")
        vision = _siglip(read, "vision_tower.", connector, tokens, positions="in order")
    return replace(vision, layers=whole.layers(vision.layers, -2), ends_normed=False)


_READERS: dict[str, Callable[[Values, Whole, Text], VisionSpec | None]] = {
    "Qwen2_5_VLForConditionalGeneration": read_qwen25,
    "Qwen3VLForConditionalGeneration": read_qwen3,
    "Qwen3VLMoeForConditionalGeneration": read_qwen3,
    "Qwen3_5ForConditionalGeneration": read_qwen35,
    "Qwen3_5MoeForConditionalGeneration": read_qwen35,
    "SmolVLMForConditionalGeneration": _idefics3,
    "Idefics3ForConditionalGeneration": _idefics3,
    "Gemma3ForConditionalGeneration": _gemma3,
    "Gemma4ForConditionalGeneration": read_gemma4,
    "Llama4ForConditionalGeneration": _llama4,
    "Mistral3ForConditionalGeneration": _mistral3,
    "LlavaForConditionalGeneration": _llava,
    "Qwen2VLForConditionalGeneration": read_qwen2,
}


def vision_of(config: Values) -> VisionSpec | None:
    """Return the vision encoder of the whole model's configuration; None where there is none that is served.

    Raises ConfigError for values of a known encoder that are out of range or not implemented.
    """
    names, eyes = config.get("architectures"), config.get("vision_config")
    reader = _READERS.get(names[0]) if isinstance(names, list) and names and isinstance(names[0], str) else None
    if reader is None or not isinstance(eyes, dict):
        return None
    text = config.get("text_config")
    path, inner = ("text_config.", text) if isinstance(text, dict) else ("", config)
    return reader(eyes, read_record(config, Whole), read_record(inner, Text, path))
