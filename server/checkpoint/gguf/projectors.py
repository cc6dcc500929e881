"""Vision encoders in GGUF files of their own, as llama.cpp's `--mmproj` reads them: a row for each type of projector.

Source: llama.cpp's tools/mtmd/clip-impl.h (keys and names), tools/mtmd/clip.cpp (what no key says) and
conversion/{gemma,llava,qwen3vl,qwenvl,smolvlm}.py, as in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...models.config_values import MAX_LAYERS
from .architecture import Config, Keys, keys
from .files import GgufFiles

KINDS = "clip.projector_type", "clip.vision.projector_type"  # the second in files with sound, too
CLASS, POSITIONS, MERGE = "v.class_embd", "v.position_embd.weight", "spatial_merge_size"
UP, DOWN = "v.blk.0.ffn_up.weight", "v.blk.0.ffn_down.weight"
PINPOINTS = "vision.image_grid_pinpoints"
IMAGE_TOKENS = 8, 4096  # least and most of a picture of Qwen, where the file has no numbers of pixels
Reading = tuple[Config, Config, Config]  # of `vision_config`, of the whole model, of its image processor


@dataclass(frozen=True, slots=True)
class Projector:
    """One row. `wholes` are types of the whole model by that of the text.

    `words` are the model's names of modules, of layers without their number; v.blk is the begin of the names of layers.
    """

    token: str  # placeholder of a vector
    wholes: Keys
    words: Keys
    keys: Keys
    read: Callable[[GgufFiles], Reading]  # what follows from further keys and from tensors
    has_rotary_pairs: bool = False
    shifted: str = ""  # norm to whose weights the file has 1 added


def kind_of(eyes: GgufFiles) -> object:
    """Return the type of projector that the file states, under either of two keys."""
    return next((eyes.metadata[key] for key in KINDS if key in eyes.metadata), None)


def size_of(eyes: GgufFiles, name: str, axis: int) -> int:
    """Return a size of a matrix. Raises CheckpointError where it is missing."""
    entry = eyes.entries.get(name)
    if entry is None or len(entry.info.shape) != 2:
        raise eyes.error("missing, or not a matrix: this is no vision encoder", name)
    return entry.info.shape[axis]


def is_swapped(eyes: GgufFiles) -> bool:
    """Return whether the file has the names of `ffn_up` and `ffn_down` the other way round, as older files do."""
    width = eyes.number("vision.embedding_length")
    return bool(size_of(eyes, UP, 1) != width == size_of(eyes, DOWN, 1))


def deep_layers(eyes: GgufFiles) -> list[int]:
    """Return the layers whose states are connected to layers of the text (DeepStack)."""
    flags = eyes.metadata.get("clip.vision.is_deepstack_layers")
    return np.flatnonzero(flags).tolist() if isinstance(flags, np.ndarray) else []


def _number(eyes: GgufFiles, key: str, default: int) -> int:
    """Return a whole number above 0, the default where the file has none."""
    value = eyes.number(f"vision.{key}")
    if value is None:
        return default
    if not isinstance(value, int) or value < 1:
        raise eyes.error(f"clip.vision.{key} is {value}: must be a whole number above 0")
    return value


def _gemma3(eyes: GgufFiles) -> Reading:
    side = _number(eyes, "image_size", 224)
    tokens = side // _number(eyes, "patch_size", 14) // _number(eyes, "projector.scale_factor", 4)
    return {}, {"mm_tokens_per_image": tokens**2}, {"size": {"height": side, "width": side}}


def _idefics3(eyes: GgufFiles) -> Reading:
    side = _number(eyes, "image_size", 224)
    sizes = {"size": _number(eyes, "preproc_image_size", side), "max_image_size": side}
    options = {key: {"longest_edge": value} for key, value in sizes.items()}
    return {}, {"scale_factor": _number(eyes, "projector.scale_factor", 2)}, options


def _llava(eyes: GgufFiles) -> Reading:
    """Return the values of LLaVA with CLIP, SigLIP or Pixtral, or of Mistral 3, which is Pixtral with merged patches.

    Older files have no layers behind the last one whose states are read.
    """
    if eyes.states(PINPOINTS):
        raise eyes.error(f"clip.{PINPOINTS} is set: pictures in several resolutions are not supported")
    side, layers, merge = (_number(eyes, *each) for each in (("image_size", 224), ("block_count", 1), (MERGE, 1)))
    has_class, is_pixtral = CLASS in eyes.entries, kind_of(eyes) == "pixtral"
    whole: Config = {
        "model_type": "mistral3" if merge > 1 else "llava",
        "spatial_merge_size": merge,
        "vision_feature_layer": _number(eyes, "feature_layer", layers) - layers - 1,
        "vision_feature_select_strategy": "default" if has_class else "full",
        "multimodal_projector_bias": "mm.2.bias" in eyes.entries,
    }
    if is_pixtral:
        base = {"rope_theta": eyes.number("rope.freq_base") or 1e4}
        return {"model_type": "pixtral", "rope_parameters": base}, whole, {"size": {"longest_edge": side}}
    square = {"height": side, "width": side}
    options: Config = {"size": {"shortest_edge": side}, "crop_size": square} if has_class else {"size": square}
    return {"model_type": f"{'clip' if has_class else 'siglip'}_vision_model"}, whole, options


def _qwen(eyes: GgufFiles) -> Reading:
    """Return the values of all of Qwen-VL, each of which reads its own; every nth layer has no windows."""
    merge, patch, every = (_number(eyes, *each) for each in ((MERGE, 2), ("patch_size", 14), ("n_wa_pattern", 1)))
    least, most = (tokens * (patch * merge) ** 2 for tokens in IMAGE_TOKENS)
    pixels = {
        "shortest_edge": _number(eyes, "image_min_pixels", least),
        "longest_edge": _number(eyes, "image_max_pixels", most),
    }
    vision = {
        "spatial_merge_size": merge,
        "mlp_ratio": size_of(eyes, DOWN if is_swapped(eyes) else UP, 0) / _number(eyes, "embedding_length", 1),
        "window_size": _number(eyes, "window_size", 112),
        "fullatt_block_indexes": [*range(every - 1, min(_number(eyes, "block_count", 1), MAX_LAYERS), every)],
        "deepstack_visual_indexes": deep_layers(eyes),
    }
    if POSITIONS in eyes.entries:
        vision["num_position_embeddings"] = size_of(eyes, POSITIONS, 0)
    return vision, {}, {"patch_size": patch, "merge_size": merge, "size": pixels}


def _siglip(at: str, further: str) -> dict[str, str]:
    """Return the words of SigLIP and CLIP below `at`."""
    outer = keys(
        "v.blk=encoder.layers v.patch_embd=embeddings.patch_embedding v.position_embd=embeddings.position_embedding"
        f" {CLASS}=embeddings.class_embedding v.pre_ln=pre_layrnorm v.post_ln=post_layernorm"
    )
    layers = (
        "attn_q=self_attn.q_proj attn_k=self_attn.k_proj attn_v=self_attn.v_proj attn_out=self_attn.out_proj"
        " ln1=layer_norm1 ln2=layer_norm2 ffn_up=mlp.fc1 ffn_down=mlp.fc2 "
    )
    return keys(layers + further) | {name: f"{at}{word}" for name, word in outer.items()}


_SIGLIP = keys(
    "image_size=image_size patch_size=patch_size embedding_length=hidden_size block_count=num_hidden_layers"
    " attention.head_count=num_attention_heads attention.layer_norm_epsilon=layer_norm_eps"
)
_QWEN = keys("patch_size=patch_size embedding_length=hidden_size block_count=depth attention.head_count=num_heads")
_QWEN2 = _QWEN | keys("embedding_length=embed_dim")
_GEMMA_WORDS = _siglip(
    "vision_tower.",
    "mm.input_projection.weight=multi_modal_projector.mm_input_projection_weight"
    " mm.soft_emb_norm=multi_modal_projector.mm_soft_emb_norm",
)
_IDEFICS_WORDS = _siglip("vision_model.", "mm.model.fc=connector.modality_projection.proj")
_LLAVA_WORDS = _siglip("vision_tower.", "mm.2=multi_modal_projector.linear_2 mm.0=multi_modal_projector.linear_1")
_PIXTRAL_WORDS = keys(
    "v.blk=vision_tower.transformer.layers v.patch_embd=vision_tower.patch_conv v.pre_ln=vision_tower.ln_pre"
    " attn_q=attention.q_proj attn_k=attention.k_proj attn_v=attention.v_proj attn_out=attention.o_proj"
    " ln1=attention_norm ln2=ffn_norm ffn_gate=feed_forward.gate_proj ffn_up=feed_forward.up_proj"
    " ffn_down=feed_forward.down_proj mm.input_norm=multi_modal_projector.norm"
    " mm.patch_merger=multi_modal_projector.patch_merger.merging_layer mm.1=multi_modal_projector.linear_1"
    " mm.2=multi_modal_projector.linear_2"
)
_QWEN_WORDS = keys(
    "v.blk=visual.blocks v.patch_embd=visual.patch_embed.proj v.position_embd=visual.pos_embed"
    " attn_q=attn.q attn_k=attn.k attn_v=attn.v attn_qkv=attn.qkv attn_out=attn.proj ln1=norm1 ln2=norm2"
    " mm.0=visual.merger.mlp.0 mm.2=visual.merger.mlp.2 v.post_ln=visual.merger.ln_q"
)
_QWEN2_WORDS = _QWEN_WORDS | keys("ffn_up=mlp.fc1 ffn_down=mlp.fc2")
_QWEN25_WORDS = _QWEN_WORDS | keys("ffn_gate=mlp.gate_proj ffn_up=mlp.up_proj ffn_down=mlp.down_proj")
_QWEN3_WORDS = _QWEN_WORDS | keys(
    "ffn_up=mlp.linear_fc1 ffn_down=mlp.linear_fc2 mm.0=visual.merger.linear_fc1 mm.2=visual.merger.linear_fc2"
    " v.post_ln=visual.merger.norm"
)
_OF_LLAMA = keys("llama=llava qwen2=llava qwen3=llava")
_OF_QWEN3 = keys("qwen3=qwen3_vl qwen3_moe=qwen3_vl_moe qwen3_5_text=qwen3_5 qwen3_5_moe_text=qwen3_5_moe")
_PAD, _SOFT, _SOFT_NORM = "<|image_pad|>", "<image_soft_token>", "mm.soft_emb_norm.weight"

PROJECTORS = {
    "gemma3": Projector(_SOFT, keys("gemma3_text=gemma3"), _GEMMA_WORDS, _SIGLIP, _gemma3, shifted=_SOFT_NORM),
    "idefics3": Projector("<image>", keys("llama=idefics3"), _IDEFICS_WORDS, _SIGLIP, _idefics3),
    "mlp": Projector("<image>", _OF_LLAMA, _LLAVA_WORDS, _SIGLIP, _llava),
    "pixtral": Projector("[IMG]", _OF_LLAMA, _PIXTRAL_WORDS, _SIGLIP, _llava, has_rotary_pairs=True),
    "qwen2vl_merger": Projector(_PAD, keys("qwen2=qwen2_vl"), _QWEN2_WORDS, _QWEN2, _qwen),
    "qwen2.5vl_merger": Projector(_PAD, keys("qwen2=qwen2_5_vl"), _QWEN25_WORDS, _QWEN, _qwen),
    "qwen3vl_merger": Projector(_PAD, _OF_QWEN3, _QWEN3_WORDS, _QWEN, _qwen),
}
