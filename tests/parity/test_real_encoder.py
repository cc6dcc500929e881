"""all-MiniLM-L6-v2 against sentence-transformers, whose vectors a golden file keeps, and against transformers, live.

Where no package has the model these are skipped; `make test-all` installs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import openai
import pytest
import torch
import transformers

from neuronserve.server.config.formats import Dtype, Quantization
from tests.api.serving import PATIENCE_S, running_server
from tests.encoders import loaded
from tests.parity.real_models import ALL_MINILM

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / f"{ALL_MINILM.name}.npz"


@pytest.fixture(scope="module")
def directory() -> Path:
    found = ALL_MINILM.directory()
    if found is None:
        pytest.skip(f"no {ALL_MINILM.package}: pip install {ALL_MINILM.pip}")
    return found


@pytest.fixture(scope="module")
def golden() -> tuple[list[str], np.ndarray]:
    """Texts, and sentence-transformers' vectors of them."""
    with np.load(GOLDEN) as file:
        return [str(text) for text in file["texts"]], file["vectors"]


class Format(NamedTuple):
    dtype: Dtype
    quantization: Quantization | None
    limit: float  # largest cosine distance; about twice what was measured, but for float32


FORMATS = [
    Format("float32", None, 1e-4),
    Format("bfloat16", None, 1e-3),
    Format("bfloat16", "int8", 2e-2),
]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("served", FORMATS, ids=lambda each: each.quantization or each.dtype)
def test_vectors_are_those_of_sentence_transformers(
    directory: Path, golden: tuple[list[str], np.ndarray], kernel_cache: str, served: Format, size: int
) -> None:
    texts, want = golden
    changes = {"dtype": served.dtype, "quantization": served.quantization, "tensor_parallel_size": size}
    with loaded(directory, kernel_cache, **changes) as found:
        assert found.tokenizer.max_length == 256
        got = found.encoder.encode(found.tokenizer.encode(texts))
    assert np.abs(np.linalg.norm(got, axis=1) - 1).max() <= 1e-6
    assert (1 - (got * want).sum(axis=1)).max() <= served.limit


def test_states_and_tokens_are_those_of_transformers(
    directory: Path, golden: tuple[list[str], np.ndarray], kernel_cache: str
) -> None:
    texts, _ = golden
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModel.from_pretrained(directory).eval()
    pairs = [*texts[:3], (texts[0], texts[1]), (texts[-1], texts[0])]
    with loaded(directory, kernel_cache) as found:
        for text, tokens in zip(pairs, found.tokenizer.encode(pairs), strict=True):
            given = (text,) if isinstance(text, str) else text
            inputs = tokenizer(*given, truncation="longest_first", max_length=256, return_tensors="pt")
            assert tuple(inputs["input_ids"][0].tolist()) == tokens.token_ids
            with torch.no_grad():
                want = model(**inputs).last_hidden_state[0].numpy()
            got = found.encoder.states(tokens)
            assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.thorough
@pytest.mark.parametrize("served", FORMATS, ids=lambda each: each.quantization or each.dtype)
def test_openais_client_gets_the_vectors_of_sentence_transformers(
    directory: Path, golden: tuple[list[str], np.ndarray], kernel_cache: str, served: Format
) -> None:
    """The server has two cores, one for each engine. OpenAI accepts no empty text."""
    kept = [i for i, text in enumerate(golden[0]) if text]
    texts, want = [golden[0][i] for i in kept], golden[1][kept]
    assert len(kept) > 5
    options = ("--kernel-cache-dir", kernel_cache, "--dtype", served.dtype, "--data-parallel-size", "2")
    options += ("--quantization", served.quantization or "none")
    with (
        running_server(directory, *options, program="neuronserve") as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=PATIENCE_S) as client,
    ):
        answer = client.embeddings.create(model="fake", input=texts, extra_body={"truncate_prompt_tokens": -1})
    got = np.array([item.embedding for item in answer.data], np.float32)
    assert (1 - (got * want).sum(axis=1)).max() <= served.limit
