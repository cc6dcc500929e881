"""`neuronserve embed` from the outside: lines, JSON, prompts, pairs, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from neuronserve.cli import main
from tests.encoders import loaded, random_model, save, write_json

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model like Qwen3-Embedding: a decoder whose last token counts, with a prompt for queries."""
    directory = save(random_model("qwen3"), tmp_path_factory.mktemp("embedder") / "qwen3")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    write_json(directory / "modules.json", modules)
    write_json(directory / "1_Pooling/config.json", {"pooling_mode_lasttoken": True})
    write_json(directory / "config_sentence_transformers.json", {"prompts": {"query": "ab ", "document": ""}})
    return directory


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], kernel_cache: str) -> Run:
    """Arguments -> exit code, output and complaints."""

    def call(*argv: object) -> tuple[int, str, str]:
        code = main(["embed", *map(str, argv), "--dtype", "float32", "--kernel-cache-dir", kernel_cache])
        return code, *capsys.readouterr()

    return call


def rows(output: str) -> np.ndarray:
    return np.array([each["embedding"] for each in json.loads(output)["data"]], np.float32)


def test_json_is_that_of_the_api(run: Run, embedder: Path, kernel_cache: str) -> None:
    code, output, _ = run(embedder, "--text", "a, b", "--text", "c", "--format", "json")
    assert code == 0
    answer = json.loads(output)
    assert answer["model"] == str(embedder)
    assert answer["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert [each["index"] for each in answer["data"]] == [0, 1]
    with loaded(embedder, kernel_cache) as found:
        want = found.encoder.encode(found.tokenizer.encode(["a, b", "c"]))
        states = [found.encoder.states(text)[-1] for text in found.tokenizer.encode(["a, b", "c"])]
    assert np.allclose(rows(output), want, atol=1e-6)
    assert np.allclose(want, [row / np.linalg.norm(row) for row in states], atol=1e-6)


def test_lines_and_files(run: Run, embedder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("one\ntwo\n")
    code, output, _ = run(embedder, "--text", "zero", "--file", tmp_path / "texts")
    assert code == 0
    lines = output.splitlines()
    assert [line.split()[-1] for line in lines] == ["zero", "one", "two"]
    assert all("(48)" in line for line in lines)


def test_prompts_are_put_before_texts(run: Run, embedder: Path) -> None:
    _, named, _ = run(embedder, "--text", "c", "--prompt-name", "query", "--format", "json")
    _, given, _ = run(embedder, "--text", "c", "--prompt", "ab ", "--format", "json")
    _, whole, _ = run(embedder, "--text", "ab c", "--format", "json", "--dimensions", 8)
    assert np.array_equal(rows(named), rows(given))
    cut = rows(named)[:, :8]
    assert np.allclose(rows(whole), cut / np.linalg.norm(cut), atol=1e-6)


def test_a_cross_encoder_scores_pairs(run: Run, tmp_path: Path) -> None:
    model = random_model("bert", transformers.AutoModelForSequenceClassification, num_labels=1)
    directory = save(model, tmp_path / "cross")
    _, output, _ = run(directory, "--query", "ab", "--text", "c", "--text", "de", "--format", "json")
    scores: list[Any] = [each["scores"] for each in json.loads(output)["data"]]
    assert [list(each) for each in scores] == [["LABEL_0"], ["LABEL_0"]]
    assert all(0 < value < 1 for each in scores for value in each.values())
    _, line, _ = run(directory, "--query", "ab", "--text", "c")
    assert line == f"LABEL_0 {scores[0]['LABEL_0']:.4f}  c\n"


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "text is missing: give --text or --file"),
        (["--text", "a", "--prompt", "b", "--prompt-name", "c"], "prompt and prompt_name are both given"),
        (["--text", "a", "--query", "b", "--prompt", "c"], "query is given: a pair has no prompt"),
        (["--text", "a", "--prompt-name", "passage"], "prompt_name is 'passage': the model's prompts are query, docu"),
        (["--file", "/nowhere"], "file /nowhere cannot be read"),
        (["--text", "a", "--dimensions", "49"], "dimensions is 49: an embedding has 48"),
        (["--text", "a", "--pooling", "median"], "--pooling: must be"),
    ],
)
def test_refusals(run: Run, embedder: Path, argv: list[str], complaint: str) -> None:
    code, _, complaints = run(embedder, *argv)
    assert code == 2
    assert complaint in complaints
