"""`neuronserve bench accuracy`: its arithmetic, its text, and the effect of formats on the default model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronserve.cli import main
from neuronserve.server.bench.accuracy import _Sums, nats
from neuronserve.server.bench.windows import read_documents, windows
from neuronserve.server.errors import SettingsError
from neuronserve.server.settings.model import DEFAULT_MODEL
from neuronserve.server.text.tokenizer import load_tokenizer
from tools.default_model.held_out import write_held_out

NUM_TOKENS = 1500
# The largest relative error of the logits, and the least top-1 agreement. float8 e5m2 has two bits of mantissa, so its
# rounding is twice that of e4m3.
BOUNDS = {
    "float32": (0.0, 1.0),
    "bfloat16": (0.01, 0.99),
    "int8": (0.02, 0.98),
    "int8-weight-only": (0.015, 0.98),
    "int8-groups": (0.02, 0.98),
    "fp8": (0.04, 0.96),
    "fp8_e5m2": (0.08, 0.96),
    "mxfp8": (0.05, 0.96),
    "int4": (0.16, 0.94),
    "mxfp4": (0.23, 0.92),
}


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("accuracy") / "held-out.jsonl"
    write_held_out(path, NUM_TOKENS)
    return path


@pytest.fixture(scope="module")
def report(held_out: Path, pytestconfig: pytest.Config) -> dict[str, Any]:
    out = held_out.with_name("accuracy.json")
    argv = ["bench", "accuracy", "--text", str(held_out), "--num-tokens", str(NUM_TOKENS), "--json", str(out)]
    assert main([*argv, "--kernel-cache-dir", str(pytestconfig.cache.mkdir("kernels"))]) == 0
    result: dict[str, Any] = json.loads(out.read_text())
    return result


@pytest.mark.slow
def test_every_format_stays_close_to_float32_on_held_out_text(report: dict[str, Any]) -> None:
    results = {result["weights"]: result for result in report["results"]}
    assert list(results) == list(BOUNDS)
    for weights, (error, agreement) in BOUNDS.items():
        assert results[weights]["num_tokens"] == NUM_TOKENS
        assert results[weights]["relative_logits_error"] <= error, weights
        assert 0 <= results[weights]["kl_divergence"] <= error, weights
        assert results[weights]["top1_agreement"] >= agreement, weights
        assert abs(results[weights]["perplexity_delta"]) < 0.02, weights


def test_fewer_bits_err_more(report: dict[str, Any]) -> None:
    errors = {result["weights"]: result["relative_logits_error"] for result in report["results"]}
    assert 0 == errors["float32"] < errors["bfloat16"] < errors["int8-weight-only"] < errors["int8"]
    assert errors["int8-weight-only"] < errors["fp8"] < errors["fp8_e5m2"] < errors["int4"] < errors["mxfp4"]


def test_the_divergence_is_that_of_its_definition() -> None:
    sums, p, q = _Sums([]), np.array([[0.5, 0.25, 0.25]]), np.array([[0.25, 0.25, 0.5]])
    sums.add((0,), np.log(q).astype(np.float32) - 3, np.log(p).astype(np.float32) + 5)
    assert sums.result("int8", 1.0).kl_divergence == pytest.approx(0.25 * math.log(2))


def test_the_model_knows_its_text(report: dict[str, Any]) -> None:
    assert 1.0 < report["results"][0]["perplexity"] < 4.0


def test_nats_are_the_negative_log_softmax() -> None:
    logits = np.log(np.array([[0.25, 0.5, 0.25], [0.1, 0.1, 0.8]])) + 7.0
    assert nats(logits, (1, 0)) == pytest.approx(-math.log(0.5) - math.log(0.1))
    assert nats(np.empty((0, 3)), ()) == 0.0


def test_windows_are_cut_inside_documents_and_end_at_the_limit() -> None:
    tokenizer = load_tokenizer(DEFAULT_MODEL)
    first, second = "seven small ships sail south", "and none of them comes back"
    ids = [tokenizer.encode(text) for text in (first, second)]
    total = len(ids[0]) + len(ids[1]) - 1
    cut = windows(tokenizer, [first, second], total, 4)
    assert [token for window in cut for token in window] == [*ids[0], *ids[1][:-1]]
    assert len(cut[(len(ids[0]) - 1) // 4]) == (len(ids[0]) - 1) % 4 + 1
    assert max(map(len, cut)) == 4


def test_a_text_that_is_too_short_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "short.txt"
    text.write_text("too short")
    assert main(["bench", "accuracy", "--text", str(text)]) == 2
    assert "num_tokens is 10000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "--text"),
        (["--text", "x", "--formats", "int3"], "int3"),
        (["--text", "x", "--quantization", "int8"], "name them with formats"),
        (["--text", "/nowhere.txt"], "/nowhere.txt"),
    ],
)
def test_bad_settings_are_named(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "accuracy", *argv]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"{", ":1: is not JSON"), (b'{"text": 5}', ":1: text is 5: expected `str`"), (b"\xff", "not UTF-8")],
)
def test_a_bad_text_file_is_named_with_its_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=words):
        read_documents(path)
