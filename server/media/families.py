"""Families of models that read pictures: one row each, with the processor and the tokens of a picture.

A picture is a mark in the text that the chat template writes. Before the text is encoded, the mark is replaced by the
picture's placeholders, one for each vector of the vision encoder, and by what stands between them. The rules are those
of transformers' processors (`replace_image_token` in `models/*/processing_*.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes that the rules need, from config.json and preprocessor_config.json."""

    merge: int = 1  # patches of a side that become one vector
    vectors: int = 0  # of one crop
    patch: int = 0  # pixels of a patch's side, where the processor's output is a size in pixels
    options: Mapping[str, Any] = field(default_factory=dict)  # of the processor, over those of the file


@dataclass(frozen=True, slots=True)
class PictureFamily:
    """How a family reads a picture."""

    processor: str  # module and class, below transformers.models; `tiles` is of this package
    grid: str  # output of the processor that tells rows and columns: of patches, or of crops
    mark: str  # text of the chat template for a picture
    placeholder: str  # token that stands for a vector
    layout: Callable[[Config, Config], Layout]  # of config.json and preprocessor_config.json
    text: Callable[[int, int, Layout], str]  # that replaces the mark, by rows and columns


def _qwen_layout(_: Config, options: Config) -> Layout:
    return Layout(merge=options.get("merge_size", 2))


def _qwen(rows: int, columns: int, layout: Layout) -> str:
    return "<|image_pad|>" * (rows * columns // layout.merge**2)


def _gemma_layout(config: Config, _: Config) -> Layout:
    return Layout(vectors=config.get("mm_tokens_per_image", 256), options={"do_pan_and_scan": False})


def _gemma(_: int, __: int, layout: Layout) -> str:
    return f"\n\n<start_of_image>{'<image_soft_token>' * layout.vectors}<end_of_image>\n\n"


def _gemma4_layout(_: Config, options: Config) -> Layout:
    return Layout(merge=options.get("pooling_kernel_size", 3))


def _gemma4(rows: int, columns: int, layout: Layout) -> str:
    return f"<|image>{'<|image|>' * (rows * columns // layout.merge**2)}<image|>"


def _idefics_layout(config: Config, _: Config) -> Layout:
    vision = config["vision_config"]
    side = vision.get("image_size", 224) // vision.get("patch_size", 32)
    return Layout(vectors=side**2 // config.get("scale_factor", 2) ** 2, options={"return_row_col_info": True})


def _idefics(rows: int, columns: int, layout: Layout) -> str:
    around, crop = "<fake_token_around_image>", "<image>" * layout.vectors
    whole = f"{around}<global-img>{crop}{around}"
    if not rows:
        return whole
    lines = (
        "".join(f"{around}<row_{row}_col_{column}>{crop}" for column in range(1, columns + 1))
        for row in range(1, rows + 1)
    )
    return "\n".join([*lines, "", whole])


def _pixtral_layout(config: Config, _: Config) -> Layout:
    merge, patch = config.get("spatial_merge_size", 1), config["vision_config"].get("patch_size", 16)
    size = {"height": patch * merge, "width": patch * merge}
    return Layout(merge, patch=patch, options={"patch_size": size})


def _pixtral(rows: int, columns: int, layout: Layout) -> str:
    row = "[IMG]" * (columns // layout.merge)
    return "[IMG_BREAK]".join([row] * (rows // layout.merge)) + "[IMG_END]"


def _llama4_layout(config: Config, _: Config) -> Layout:
    vision = config["vision_config"]
    side = vision.get("image_size", 448) // vision.get("patch_size", 14)
    return Layout(vectors=side**2 // round(vision.get("pixel_shuffle_ratio", 0.5) ** -2))


def _llama4(rows: int, columns: int, layout: Layout) -> str:
    tile = "<|patch|>" * layout.vectors
    row = "<|tile_x_separator|>".join([tile] * columns) + "<|tile_y_separator|>"
    return f"<|image_start|>{row * rows if rows * columns > 1 else ''}<|image|>{tile}<|image_end|>"


def _square_layout(config: Config, _: Config) -> Layout:
    vision = config["vision_config"]
    return Layout(vectors=(vision.get("image_size", 224) // vision.get("patch_size", 32)) ** 2)


def _square(_: int, __: int, layout: Layout) -> str:
    return "<image>" * layout.vectors


_QWEN = PictureFamily(
    processor="qwen2_vl.image_processing_pil_qwen2_vl.Qwen2VLImageProcessorPil",
    grid="image_grid_thw",
    mark="<|image_pad|>",
    placeholder="<|image_pad|>",
    layout=_qwen_layout,
    text=_qwen,
)
_GEMMA = PictureFamily(
    processor="gemma3.image_processing_pil_gemma3.Gemma3ImageProcessorPil",
    grid="",
    mark="<start_of_image>",
    placeholder="<image_soft_token>",
    layout=_gemma_layout,
    text=_gemma,
)
_GEMMA4 = PictureFamily(
    processor="gemma4.image_processing_pil_gemma4.Gemma4ImageProcessorPil",
    grid="image_position_ids",
    mark="<|image|>",
    placeholder="<|image|>",
    layout=_gemma4_layout,
    text=_gemma4,
)
_IDEFICS = PictureFamily(
    processor="idefics3.image_processing_pil_idefics3.Idefics3ImageProcessorPil",
    grid="rows cols",
    mark="<image>",
    placeholder="<image>",
    layout=_idefics_layout,
    text=_idefics,
)
_PIXTRAL = PictureFamily(
    processor="pixtral.image_processing_pil_pixtral.PixtralImageProcessorPil",
    grid="image_sizes",
    mark="[IMG]",
    placeholder="[IMG]",
    layout=_pixtral_layout,
    text=_pixtral,
)
_LLAMA4 = replace(
    _IDEFICS,
    processor="tiles.TileProcessor",
    mark="<|image|>",
    placeholder="<|patch|>",
    layout=_llama4_layout,
    text=_llama4,
)
_CLIP = PictureFamily(
    processor="clip.image_processing_pil_clip.CLIPImageProcessorPil",
    grid="",
    mark="<image>",
    placeholder="<image>",
    layout=_square_layout,
    text=_square,
)
_SIGLIP = replace(_CLIP, processor="siglip.image_processing_pil_siglip.SiglipImageProcessorPil")
FAMILIES = {  # by model_type of config.json, of LLaVA behind that of its encoder
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _QWEN),
    "gemma3": _GEMMA,
    "gemma4": _GEMMA4,
    "llama4": _LLAMA4,
    **dict.fromkeys(("idefics3", "smolvlm"), _IDEFICS),
    **dict.fromkeys(("mistral3", "pixtral llava"), _PIXTRAL),
    "clip_vision_model llava": _CLIP,
    "siglip_vision_model llava": _SIGLIP,
}


def family_name(config: Config) -> str:
    """Return the name under which FAMILIES may have the model of that config.json."""
    name, vision = str(config.get("model_type")), config.get("vision_config")
    if name != "llava" or not isinstance(vision, dict):
        return name
    return f"{vision.get('model_type', 'clip_vision_model')} {name}"
