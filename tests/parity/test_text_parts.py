"""Checkpoints of models that see pictures, as transformers writes them: their texts are those of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from neuronserve.server.errors import CheckpointError
from tests.parity.test_family_parity import FAMILIES, random_model

TOLERANCE = 1e-5  # largest error over largest logit
TOKENS = tuple(np.random.default_rng(1).integers(0, 101, 100).tolist())
TEXT: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
EYES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
CHUNKS = {"num_local_experts": 4, "intermediate_size_mlp": 40, "attention_chunk_size": 32}
WIDTHS = {"intermediate_size": 128, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
PIXTRAL = {**EYES, "model_type": "pixtral", "head_dim": 16}
PATCHES = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 48,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
ROPE = {"rope_type": "default", "rope_theta": 1e6}
ROPE3: dict[str, Any] = {"rope_parameters": {**ROPE, "mrope_section": [2, 2, 2]}, "head_dim": 12}
MIXED3 = {"rope_parameters": {**ROPE, "mrope_section": [4, 2, 2], "mrope_interleaved": True}}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
HYBRID = {  # three layers that keep a state, and one that attends
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "rope_parameters": {**ROPE, "mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.5},
}
INPUTS = {  # Gemma 4 E2B
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "sliding_window": 9,
    "global_head_dim": 24,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 101,
    "num_kv_shared_layers": 1,
}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any], bool]] = {  # family, text, eyes, is tied
    "gemma3": ("Gemma3", {"sliding_window": 9}, EYES, True),
    "gemma3-apart": ("Gemma3", {"sliding_window": 9}, EYES, False),
    "mistral3": ("Mistral3", {"model_type": "mistral", "sliding_window": None}, PIXTRAL, False),
    "mistral3-tied": ("Mistral3", {"model_type": "mistral", "sliding_window": None}, PIXTRAL, True),
    "ministral3": ("Mistral3", {"model_type": "ministral3"}, PIXTRAL, False),
    "llama4": ("Llama4", CHUNKS, {**EYES, **WIDTHS}, False),
    "qwen2-vl": ("Qwen2VL", ROPE3, {"depth": 1, "embed_dim": 32, "hidden_size": 48, "num_heads": 2}, False),
    "qwen2.5-vl": ("Qwen2_5_VL", ROPE3, PATCHES, False),
    "qwen3-vl": ("Qwen3VL", MIXED3, PATCHES, True),
    "qwen3-vl-moe": ("Qwen3VLMoe", {**MIXED3, **EXPERTS}, PATCHES, False),
    "smolvlm": ("SmolVLM", {"model_type": "llama"}, EYES, False),
    "idefics3": ("Idefics3", {"model_type": "llama"}, EYES, True),
    "gemma4": ("Gemma4", INPUTS, {**EYES, "num_key_value_heads": 2, "head_dim": 16}, True),
    "qwen3.5": ("Qwen3_5", HYBRID, PATCHES, False),
    "qwen3.5-moe": ("Qwen3_5Moe", {**HYBRID, **EXPERTS, "shared_expert_intermediate_size": 24}, PATCHES, False),
    "llava": ("Llava", {"model_type": "qwen2", "head_dim": 12}, {**EYES, "model_type": "siglip_vision_model"}, False),
}


def write(name: str, directory: Path) -> Any:
    """Write a random model of that name, and return it."""
    family, text, eyes, is_tied = MODELS[name]
    config = getattr(transformers, f"{family}Config")(
        text_config={**TEXT, **text}, vision_config=eyes, tie_word_embeddings=is_tied, mm_tokens_per_image=4
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    model.save_pretrained(directory)
    model.set_experts_implementation("eager")  # grouped products have no float64
    return model.eval()


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("name", MODELS)
def test_the_text_of_a_model_that_sees_pictures_is_that_of_transformers(
    engine_logits: Callable[..., np.ndarray], tmp_path: Path, name: str
) -> None:
    model = write(name, tmp_path / name)
    # transformers 5.24 cannot run the whole Llama 4 on text alone.
    text = model.language_model if isinstance(model, transformers.Llama4ForConditionalGeneration) else model
    single = text(torch.tensor([TOKENS])).logits[0].numpy()
    expected = text.double()(torch.tensor([TOKENS])).logits[0].numpy()
    got = engine_logits(tmp_path / name, "float32", 1, TOKENS)
    # Some tokens of a random gated delta rule multiply rounding errors, those of transformers in float32 too.
    most = max(TOLERANCE * np.abs(expected).max(), 4 * np.abs(single - expected).max())
    assert np.abs(got - expected).max() <= most


def test_tensors_may_be_named_as_inside_of_transformers(
    engine_logits: Callable[..., np.ndarray], tmp_path: Path
) -> None:
    write("gemma3-apart", tmp_path / "before")
    write("gemma3-apart", tmp_path / "today")
    file = tmp_path / "today" / "model.safetensors"
    tensors = {
        name.replace("language_model.model.", "model.language_model.").replace("language_model.lm", "lm"): values
        for name, values in load_file(file).items()
    }
    save_file(tensors, file)
    today, before = (engine_logits(tmp_path / each, "float32", 1, TOKENS) for each in ("today", "before"))
    np.testing.assert_array_equal(today, before)


def test_gemma_3n_is_read_as_published(engine_logits: Callable[..., np.ndarray], tmp_path: Path) -> None:
    family, text, whole = FAMILIES["gemma3n"], tmp_path / "text", tmp_path / "whole"
    model = random_model(replace(family, options=family.options | {"max_position_embeddings": 512}))
    model.save_pretrained(text)
    model.save_pretrained(whole)
    config = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n"}
    config |= {"text_config": json.loads((text / "config.json").read_text())}
    (whole / "config.json").write_text(json.dumps(config))
    tensors = load_file(text / "model.safetensors")
    nested = {name.replace("model.", "model.language_model.", 1): values for name, values in tensors.items()}
    eyes = {"model.embed_vision.embedding.weight": torch.zeros(8, 8)}
    save_file(nested | eyes, whole / "model.safetensors")
    of_text, of_whole = (engine_logits(each, "float32", 1, TOKENS) for each in (text, whole))
    np.testing.assert_array_equal(of_text, of_whole)


def test_experts_of_qwen3_vl_may_be_transposed(engine_logits: Callable[..., np.ndarray], tmp_path: Path) -> None:
    write("qwen3-vl-moe", tmp_path / "written")
    write("qwen3-vl-moe", tmp_path / "published")
    file = tmp_path / "published" / "model.safetensors"
    tensors = {
        name: values.transpose(1, 2).contiguous() if ".experts." in name else values
        for name, values in load_file(file).items()
    }
    save_file(tensors, file)
    written, published = (engine_logits(tmp_path / each, "float32", 1, TOKENS) for each in ("written", "published"))
    np.testing.assert_array_equal(written, published)


def test_a_text_of_another_family_is_refused_by_its_type(
    engine_logits: Callable[..., np.ndarray], tmp_path: Path
) -> None:
    write("mistral3", tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"model_type": "mistral"', '"model_type": "mamba"'))
    with pytest.raises(CheckpointError, match=r"text_config.model_type is 'mamba': supported are mistral, ministral3"):
        engine_logits(tmp_path, "float32", 1, TOKENS)
