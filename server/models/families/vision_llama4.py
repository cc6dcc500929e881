"""The vision encoder of Llama 4, as transformers has it in `modeling_llama4`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from msgspec import Meta

from ..config_values import Heads, Layers, Values, Width, read_record, refuse
from ..names import Names
from ..rope import read_rope
from ..vision import Join, PatchSpec, RowNorm, VisionSpec
from .vision_keys import Channels, Eyes, HiddenAct, Side, Text, Whole, linear

AT = "vision_model."
EPS = 1e-5  # of all norms: the family's code has no key for it
_WORDS = {
    "model.layers": f"{AT}model.layers",
    "model.norm": f"{AT}layernorm_post",
    "mlp.up_proj": "mlp.fc1",
    "mlp.down_proj": "mlp.fc2",
}


class _Llama4Eyes(Eyes, kw_only=True, rename={
    "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "channels": "num_channels"
}):  # fmt: skip
    num_layers: Layers
    num_heads: Heads
    channels: Channels = 3
    hidden_act: HiddenAct = "gelu"
    image_size: Side = 448
    patch_size: Side = 14
    pixel_shuffle_ratio: Annotated[float, Meta(ge=1 / 16, le=1.0)] = 0.5
    projector_input_dim: Width = 4096
    projector_output_dim: Width = 4096
    vision_output_dim: Width = 7680

    @property
    def merge(self) -> int:
        """Patches of a side that become one vector."""
        return round(1 / self.pixel_shuffle_ratio)


def read_llama4(eyes: Values, whole: Whole, text: Text) -> VisionSpec:
    """Return the encoder: rotations by column and row, a class token behind the patches, neighbours joined."""
    read = read_record({**eyes, "hidden_act": "gelu"}, _Llama4Eyes, "vision_config.")  # the only one of its code
    side = read.image_size // read.patch_size
    _require_sizes(read, side)
    rope = read_rope({**eyes, "rope_parameters": {**(eyes.get("rope_parameters") or {}), "rope_type": "default"}}, 1)
    adapter, size = f"{AT}vision_adapter.mlp.", read.projector_output_dim
    return VisionSpec(
        read.hidden_size,
        read.layers(replace(rope, is_interleaved=True), has_bias=True, is_gated=False),
        EPS,
        False,
        Names.of(_WORDS, AT),
        PatchSpec(
            read.patch_size,
            read.channels,
            linear(f"{AT}patch_embedding.linear", read.hidden_size, has_bias=False),
            positions="in order",
            table=f"{AT}positional_embedding_vlm",
            grid_side=side,
            norm=RowNorm(f"{AT}layernorm_pre", EPS, has_bias=True),
            class_token=f"{AT}class_embedding",
            is_class_last=True,
        ),
        (
            Join(read.merge),
            linear(f"{adapter}fc1", size, "gelu", has_bias=False),
            linear(f"{adapter}fc2", size, "gelu", has_bias=False),
            linear("multi_modal_projector.linear_1", text.hidden_size, has_bias=False),
        ),
        whole.token_id(200_092),
        read.merge,
        turns_by_columns=True,
    )


def _require_sizes(read: _Llama4Eyes, side: int) -> None:
    """Raise ConfigError where sizes differ that have several names."""
    if read.merge * read.pixel_shuffle_ratio != 1.0 or side % read.merge:
        reason = f"must be 1 / n, where n divides the {side} patches of a picture's side"
        raise refuse("vision_config.pixel_shuffle_ratio", read.pixel_shuffle_ratio, reason)
    for name, expected in (
        ("intermediate_size", read.hidden_size * read.merge**2),
        ("projector_input_dim", read.projector_output_dim),
        ("vision_output_dim", read.projector_output_dim),
    ):
        if (value := getattr(read, name)) != expected:
            raise refuse(f"vision_config.{name}", value, f"must be {expected} beside the other sizes")
