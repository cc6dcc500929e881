"""GGUF files of text and of vision encoders: logits of prompts with pictures are those of transformers."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
import torch

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.hub import resolve_model
from neuronserve.server.checkpoint.model_config import read_model_spec
from neuronserve.server.errors import CheckpointError, SettingsError
from tests.api.serving import running_server
from tests.api.test_pictures import PAD, TEMPLATE
from tests.checkpoint.gguf.made_eyes import PROJECTORS, write_eyes, write_text
from tests.parity.test_picture_parity import (
    TOLERANCE,
    encoded_logits,
    engine_with_pictures,
    error_of,
    logits_of,
    prompt_of,
)
from tests.parity.test_served_pictures import PICTURES, answer_of, ask, expected_tokens
from tests.parity.vision_models import TOKEN, random_vision_model

F16, F32 = gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.F32
SIGLIP = {"size": {"height": 24, "width": 24}}
PIXELS = {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 8 * 8**2, "longest_edge": 4096 * 8**2}}
OPTIONS = {  # of the image processor, beside means and deviations
    "gemma3": SIGLIP,
    "smolvlm": {"size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 24}},
    "idefics3": {"size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 24}},
    "mistral3": {"size": {"longest_edge": 24}},
    "llava-pixtral": {"size": {"longest_edge": 24}},
    "llava-clip": {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}},
    "llava-siglip": SIGLIP,
}


@pytest.mark.parametrize("name", PROJECTORS)
def test_files_have_the_model_and_its_values(tmp_path: Path, kernel_cache: str, name: str) -> None:
    """Old files have the two layers of a network the other way round; files of 16 bits lose nothing here."""
    model = random_vision_model(name, tmp_path / "plain", 300)
    kind, is_old = (
        (F16, False) if name in ("smolvlm", "qwen3-vl") else (F32, PROJECTORS[name] in ("mlp", "qwen2vl_merger"))
    )
    if kind == F16:
        for values in model.parameters():
            values.data = values.data.half().float()
        model.save_pretrained(tmp_path / "plain")
    text = write_text(name, tmp_path / "plain", tmp_path / "text.gguf", TOKEN)
    eyes = write_eyes(name, tmp_path / "plain", tmp_path / "mmproj.gguf", kind, is_old)
    directory = resolve_model(str(text), None, tmp_path / "cache", str(eyes))
    spec, own = read_model_spec(directory), read_model_spec(tmp_path / "plain")
    assert spec.vision == own.vision
    assert spec.stacks == own.stacks
    means = {"image_mean": [0.5, 0.25, 0.125], "image_std": [0.5, 0.5, 0.75]}
    assert json.loads((directory / "preprocessor_config.json").read_text()) == means | OPTIONS.get(name, PIXELS)
    assert not Checkpoint.open(directory, spec).surplus
    eyes_alone = Checkpoint.open(directory, spec.vision_encoder).surplus  # a connector's tensors are read by name
    assert not [each for each in eyes_alone if each.startswith(("v.", "mm."))]
    ids, media = prompt_of(name)
    loaded, pictures = engine_with_pictures(directory, kernel_cache)
    with torch.inference_mode():
        expected = logits_of(model, name, ids, media)
    assert error_of(encoded_logits(loaded, pictures, ids, media), expected) <= TOLERANCE
    loaded.runner.close()


def test_a_server_of_two_files_reads_pictures_as_transformers_does(tmp_path: Path, kernel_cache: str) -> None:
    model = random_vision_model("qwen3-vl", tmp_path / "plain", PAD + 1, image_token_id=PAD)
    text = write_text("qwen3-vl", tmp_path / "plain", tmp_path / "text.gguf", PAD, TEMPLATE)
    eyes = write_eyes("qwen3-vl", tmp_path / "plain", tmp_path / "mmproj.gguf", F32)
    options = (
        "--mmproj",
        str(eyes),
        "--dtype",
        "float32",
        "--max-model-len",
        "256",
        "--kernel-cache-dir",
        kernel_cache,
    )
    means = {"image_mean": [0.5, 0.25, 0.125], "image_std": [0.5, 0.5, 0.75]}
    with running_server(text, *options, program="neuronserve") as served:
        prompt, tokens, _ = answer_of(served, ask(*PICTURES))
    assert tokens == expected_tokens(model, prompt, PICTURES, means | PIXELS)


def edited(path: Path, old: bytes, new: bytes) -> Path:
    assert len(old) == len(new)
    path.write_bytes(path.read_bytes().replace(old, new))
    return path


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    for name in ("smolvlm", "qwen2-vl"):
        random_vision_model(name, tmp_path / name, 300)
        write_text(name, tmp_path / name, tmp_path / f"{name}.gguf", TOKEN)
    eyes = write_eyes("smolvlm", tmp_path / "smolvlm", tmp_path / "mmproj.gguf", F32)
    text, cache = str(tmp_path / "smolvlm.gguf"), tmp_path / "cache"
    with pytest.raises(CheckpointError, match=r"takes a text of the type llama with the token <image>; qwen2-vl.gguf"):
        resolve_model(str(tmp_path / "qwen2-vl.gguf"), None, cache, str(eyes))
    with pytest.raises(CheckpointError, match=r"clip.projector_type is None: read are gemma3, idefics3"):
        resolve_model(text, None, cache, text)
    with pytest.raises(SettingsError, match=r"mmproj is .* but the model .* is no GGUF file"):
        resolve_model(str(tmp_path / "smolvlm"), None, cache, str(eyes))
    edited(eyes, b"v.blk.0.ffn_up.weight", b"v.blk.0.ffn_zz.weight")
    with pytest.raises(CheckpointError, match=r"ffn_up.weight: missing, or not a matrix"):
        resolve_model(text, None, cache, str(eyes))
    edited(tmp_path / "mmproj.gguf", b"idefics3", b"idefics4")
    with pytest.raises(CheckpointError, match=r"is .idefics4.: read are"):
        resolve_model(text, None, cache, str(eyes))
