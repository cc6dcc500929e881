"""A server of a model that sees pictures writes what transformers writes for the same files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from neuronserve.server.media.tiles import TileProcessor
from tests.api.serving import Server, running_server
from tests.api.telemetry.scraping import scrape
from tests.media.pictures import data_url, encoded, noise
from tests.parity import vision_models
from tests.parity.test_predictor import add_predictor

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|eos|>", "<|image_pad|>", "<image>", "[IMG]", "[IMG_BREAK]", "[IMG_END]"]
SPECIAL += ["<start_of_image>", "<image_soft_token>", "<end_of_image>", "<|image|>", "<|image>", "<image|>"]
SPECIAL += ["<|image_start|>", "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>", "<|image_end|>"]
IDS = {name: 256 + i for i, name in enumerate(SPECIAL)}
VOCAB_SIZE = 256 + len(SPECIAL)
QWEN = {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 64, "longest_edge": 4096}}
CROPS = {"size": {"longest_edge": 48}, "max_image_size": {"longest_edge": 24}}
ROWS = {"size": {"longest_edge": 48}, "patch_size": {"height": 8, "width": 8}}
SOFT = {"patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 70}
SQUARE = {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}}
CASES: dict[str, tuple[str, str, Any, dict[str, Any]]] = {  # mark, name of its id, processor, its options
    "qwen3-vl": ("<|image_pad|>", "image_token_id", Qwen2VLImageProcessorPil, QWEN),
    "qwen2.5-vl": ("<|image_pad|>", "image_token_id", Qwen2VLImageProcessorPil, QWEN),
    "smolvlm": ("<image>", "image_token_id", Idefics3ImageProcessorPil, CROPS),
    "mistral3": ("[IMG]", "image_token_index", PixtralImageProcessorPil, ROWS),
    "gemma4": ("<|image|>", "image_token_id", Gemma4ImageProcessorPil, SOFT),
    "llava-clip": ("<image>", "image_token_index", CLIPImageProcessorPil, SQUARE),
    "llama4": (
        "<|image|>",
        "image_token_index",
        TileProcessor,
        {"size": {"height": 24, "width": 24}, "max_patches": 4},
    ),
    "gemma3": ("<start_of_image>", "image_token_index", Gemma3ImageProcessorPil, {"size": {"height": 24, "width": 24}}),
}
CASES["qwen3.5"] = CASES["qwen3-vl"]
DRAFTED = ("qwen3.5",)  # by a layer that predicts further tokens
STEPS = {"gemma4": 128}  # tokens of a step; a picture has up to 70
PLACEHOLDERS = {"gemma3": "<image_soft_token>", "llama4": "<|patch|>"}  # where it is not the mark
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for part in m.content %}{% if part.type == 'image' %}(MARK)"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NUM_TOKENS = 8
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in CASES if name not in ("qwen3-vl", "gemma3")]
Serving = Callable[[str], tuple[Any, Server]]


def write_checkpoint(name: str, directory: Path) -> Any:
    """Write a random model with a tokenizer of bytes; return transformers' model."""
    mark, token_name, _, options = CASES[name]
    placeholder = IDS[PLACEHOLDERS.get(name, mark)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vision_models.TEXT, "max_position_embeddings", 2048)
        model = vision_models.random_vision_model(name, directory, VOCAB_SIZE, **{token_name: placeholder})
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {"eos_token": "<|eos|>", "chat_template": TEMPLATE.replace("MARK", mark)}
    (directory / "tokenizer_config.json").write_text(json.dumps(named))
    (directory / "preprocessor_config.json").write_text(json.dumps(options))
    return model


@pytest.fixture(scope="module")
def serving(
    tmp_path_factory: pytest.TempPathFactory, kernel_cache: str
) -> Iterator[Callable[[str], tuple[Any, Server]]]:
    """Name -> transformers' model and a server of it."""
    open_servers = []

    @cache
    def start(name: str) -> tuple[Any, Server]:
        directory = tmp_path_factory.mktemp(name)
        model = write_checkpoint(name, directory)
        options = ["--dtype", "float32", "--kernel-cache-dir", kernel_cache, "--max-model-len", "1024"]
        if name in DRAFTED:
            text = SimpleNamespace(
                model=model.model.language_model, lm_head=model.lm_head, config=model.config.text_config
            )
            add_predictor(text, False, directory)
            options += ["--speculative-config", '{"method": "qwen3_5_mtp", "num_speculative_tokens": 2}']
        server = running_server(
            directory,
            *options,
            "--max-num-batched-tokens",
            str(STEPS.get(name, 64)),
            "--max-num-seqs",
            "8",
            program="neuronserve",
        )
        open_servers.append(server)
        return model, server.__enter__()

    yield start
    for server in open_servers:
        server.__exit__(None, None, None)


def pixels_of(name: str, images: list[Image.Image]) -> dict[str, torch.Tensor]:
    """Pictures of one prompt as transformers' processor gives them to the model."""
    _, _, processor, options = CASES[name]
    if name == "llama4":
        tiles = [processor(**options)(images=[image])["pixel_values"][0] for image in images]
        return {"pixel_values": torch.from_numpy(np.concatenate(tiles))}
    given = processor(**options)(images=[images] if name == "smolvlm" else images, return_tensors="np")
    for key in ("num_crops", "num_soft_tokens_per_image"):
        given.pop(key, None)
    return {key: torch.from_numpy(np.asarray(value)) for key, value in given.items()}


def written(model: Any, name: str, ids: list[int], images: list[Image.Image]) -> list[int]:
    """Tokens that transformers writes after a prompt, greedily."""
    inputs: dict[str, Any] = {"input_ids": torch.tensor([ids]), **(pixels_of(name, images) if images else {})}
    if name.startswith("qwen") or name == "gemma4":
        inputs["mm_token_type_ids"] = (inputs["input_ids"] == IDS[CASES[name][0]]).int()
    elif name == "gemma3":
        inputs["token_type_ids"] = (inputs["input_ids"] == IDS[PLACEHOLDERS[name]]).int()
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    with torch.inference_mode():
        made = model.generate(**inputs, do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=None, pad_token_id=0)
    tokens: list[int] = made[0, len(ids) :].tolist()
    return tokens


def ask(server: Server, images: list[Image.Image], text: str = "And what is this?") -> dict[str, Any]:
    parts: list[Any] = [{"type": "image_url", "image_url": {"url": data_url(encoded(image))}} for image in images]
    content = [{"type": "text", "text": "Look: "}, *parts, {"type": "text", "text": text}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": NUM_TOKENS, "temperature": 0}
    options = {"return_token_ids": True, "ignore_eos": True}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={**body, **options}, timeout=300)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("name", ["qwen3-vl", "gemma3", *SLOW])
def test_a_server_writes_what_transformers_writes(serving: Serving, name: str) -> None:
    """One picture, several of different sizes, a prefix hit with another picture after it, and text alone."""
    model, server = serving(name)
    first, second, third = noise(40, 30), noise(21, 64, seed=1), noise(40, 30, seed=2)
    for images in ([first], [first, second, third], [first, third], [third], []):
        answer = ask(server, images)
        ids = answer["prompt_token_ids"]
        assert answer["choices"][0]["token_ids"] == written(model, name, ids, images), len(images)
        counted = answer["usage"]["prompt_tokens_details"].get("image_tokens", 0)
        assert counted == ids.count(IDS[PLACEHOLDERS.get(name, CASES[name][0])])
    if name in DRAFTED:
        assert scrape(server.url).value("vllm:spec_decode_num_draft_tokens_total") > 0
    again = ask(server, [first, third])
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
