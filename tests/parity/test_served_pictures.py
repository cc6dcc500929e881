"""Pictures in a chat go through the whole server: processor, encoder and engine. They are read as transformers does."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.api.serving import Server, running_server
from tests.api.test_pictures import PAD, image, write_vision_checkpoint
from tests.media.pictures import data_url, encoded, noise
from tests.parity.vision_models import random_vision_model

OPTIONS = {"patch_size": 4, "size": {"shortest_edge": 8 * 8, "longest_edge": 32 * 32}}
PICTURES = [encoded(noise(24, 16, seed=1)), encoded(noise(16, 40, seed=2))]
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision_checkpoint(tmp_path_factory.mktemp("qwen3-vl"))


@pytest.fixture(scope="module")
def model(directory: Path) -> Any:
    made = random_vision_model("qwen3-vl", directory, vocab_size=PAD + 1, image_token_id=PAD)
    (directory / "preprocessor_config.json").write_text(json.dumps(OPTIONS))
    return made


@pytest.fixture(scope="module")
def served(model: Any, directory: Path, kernel_cache: str) -> Iterator[Server]:
    del model
    options = ("--dtype", "float32", "--max-num-batched-tokens", "16", "--max-num-seqs", "4")
    limits = ("--max-model-len", "256", "--kernel-cache-dir", kernel_cache, "--max-engine-restarts", "3")
    with running_server(directory, *options, *limits, program="neuronserve") as running:
        yield running


def ask(*pictures: bytes, **fields: Any) -> dict[str, Any]:
    text = {"type": "text", "text": "what?"}  # between pictures too: transformers takes neighbours for one picture
    content = [part for each in pictures for part in (text, image(data_url(each)))]
    greedy = {"temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True, "return_token_ids": True}
    return {"messages": [{"role": "user", "content": [*content, text]}], **greedy, **fields}


def answer_of(served: Server, body: dict[str, Any]) -> tuple[list[int], list[int], dict[str, Any]]:
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["prompt_token_ids"], found["choices"][0]["token_ids"], found["usage"]


def expected_tokens(
    model: Any, prompt: list[int], pictures: list[bytes], options: dict[str, Any] = OPTIONS
) -> list[int]:
    given = Qwen2VLImageProcessorPil(**options)(
        images=[Image.open(io.BytesIO(each)) for each in pictures], return_tensors="pt"
    )
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(NUM_TOKENS):
            known = torch.tensor([ids])
            logits = model(input_ids=known, mm_token_type_ids=(known == PAD).int(), **given).logits[0, -1]
            ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


def test_answers_about_pictures_are_those_of_transformers(served: Server, model: Any) -> None:
    for pictures in (PICTURES, PICTURES[:1], PICTURES[::-1], PICTURES[1:]):
        prompt, tokens, usage = answer_of(served, ask(*pictures))
        assert tokens == expected_tokens(model, prompt, pictures)
        assert usage["prompt_tokens"] == len(prompt)
    prompt, tokens, usage = answer_of(served, ask(*PICTURES))
    assert tokens == expected_tokens(model, prompt, PICTURES)
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 16


@pytest.mark.slow
def test_an_engine_that_follows_reads_the_pictures_again(served: Server, model: Any) -> None:
    body = ask(*PICTURES, stream=True, max_tokens=150)
    tokens, prompt, first = list[int](), list[int](), served.engine_pid
    with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=300) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            prompt = event.get("prompt_token_ids") or prompt
            for choice in event["choices"]:
                tokens += choice.get("token_ids") or []
            if len(tokens) >= 5 and first:
                os.kill(first, signal.SIGKILL)
                first = 0
    assert first == 0
    assert len(tokens) == 150
    assert tokens[:NUM_TOKENS] == expected_tokens(model, prompt, PICTURES)
