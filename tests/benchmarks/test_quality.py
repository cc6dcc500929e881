"""KL divergence, top-1 and perplexity: read from llama-perplexity, computed here, and shown beside speeds."""

from __future__ import annotations

import json
import math
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import compare, quality, report
from benchmarks.interleave import CaseResult
from benchmarks.peers import OURS, Installed
from benchmarks.quality_rows import LLAMA_CPP, Row, of_contenders, read_rows
from benchmarks.records import BenchmarkError, Case
from benchmarks.reference import MAGIC, Reference
from tests.checkpoint.gguf.made import write_pair
from tools.golden.oracle import Oracle

PIECE = 512
SAID = """
====== Perplexity statistics ======
Mean PPL(Q)                   :  15.897645 ±   1.410659
Mean PPL(base)                :  15.877562 ±   1.414097
====== KL divergence statistics ======
Mean    KLD:   0.004697 ±   0.000160
Maximum KLD:   0.053762
====== Token probability statistics ======
Same top p: 95.882 ± 0.622 %
"""


def log_softmax(logits: np.ndarray) -> np.ndarray:
    rows = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    found: np.ndarray = rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))
    return found


def write_base(path: Path, tokens: np.ndarray, logits: np.ndarray) -> None:
    """The file that llama-perplexity writes of logits `[pieces, tokens, vocab]`."""
    count, size, vocab = logits.shape
    scored = log_softmax(logits[:, size // 2 : -1])
    least = np.maximum(scored.min(axis=-1), scored.max(axis=-1) - 16)
    scale = (scored.max(axis=-1) - least) / 65535
    codes = np.rint((np.maximum(scored, least[..., None]) - least[..., None]) / scale[..., None]).astype(np.uint16)
    head = np.stack([scale, least], axis=-1).astype(np.float32).view(np.uint16)
    padding = np.zeros((*codes.shape[:2], vocab % 2), np.uint16)
    header = np.array([size, vocab, count], np.int32).tobytes() + tokens.astype(np.int32).tobytes()
    path.write_bytes(MAGIC + header + np.concatenate([head, codes, padding], axis=-1).tobytes())


def test_scores_are_those_of_their_definition(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens, logits = rng.integers(0, 33, (2, 40)), rng.standard_normal((2, 40, 33)).astype(np.float32) * 3
    write_base(tmp_path / "base", tokens, logits)
    reference, begin = Reference(tmp_path / "base"), [7]
    given = [tuple([*begin, *piece[1:]]) for piece in tokens.tolist()]
    near = {ids: each for ids, each in zip(given, logits, strict=True)}
    same = reference.score(lambda ids: near[tuple(ids)], begin)
    assert (same.kl, same.top1) == (pytest.approx(0, abs=1e-5), 1.0)
    other = {ids: each + rng.standard_normal(each.shape).astype(np.float32) for ids, each in near.items()}
    score = reference.score(lambda ids: other[tuple(ids)], begin)
    p, q = log_softmax(logits[:, 20:-1]), log_softmax(np.stack([other[ids] for ids in given])[:, 20:-1])
    assert score.kl == pytest.approx((np.exp(p) * (p - q)).sum(axis=-1).mean(), abs=1e-4)
    assert score.top1 == (p.argmax(axis=-1) == q.argmax(axis=-1)).mean() < 1
    nats = -np.take_along_axis(q, tokens[:, 21:, None], axis=-1).mean()
    assert score.perplexity == pytest.approx(math.exp(nats))


@pytest.mark.parametrize("content", [b"", b"_logits_", b"GGUF" + bytes(64)])
def test_another_file_is_no_reference(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "base").write_bytes(content)
    with pytest.raises(BenchmarkError, match="base has no log-probabilities"):
        Reference(tmp_path / "base")


def test_what_llama_perplexity_says_is_read() -> None:
    score = quality.parse_score(SAID)
    assert (score.kl, score.top1, score.perplexity) == (0.004697, pytest.approx(0.95882), 15.897645)
    with pytest.raises(BenchmarkError, match="printed no KL divergence"):
        quality.parse_score("Mean PPL(Q) : 3.0")


PROGRAM = """
import shutil, sys
argv = sys.argv[1:]
if {name!r} == "llama-quantize":
    shutil.copy(argv[-4], argv[-3])
elif "--kl-divergence" in argv:
    print({said!r})
else:
    shutil.copy({base!r}, argv[argv.index("--kl-divergence-base") + 1])
    print("Final estimate: PPL = 12.5 +/- 0.1")
"""


def test_the_table_from_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    """The reference is transformers' logits of the same weights; programs in the place of llama.cpp's copy files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytestconfig.cache.mkdir("kernels")))
    file, oracle = write_pair("tiny-qwen3", tmp_path), Oracle(tmp_path / "plain")
    tokens = np.random.default_rng(1).integers(0, 200, (2, PIECE))
    write_base(tmp_path / "base", tokens, np.stack([oracle.logits(piece) for piece in tokens.tolist()]))
    for name in ("llama-quantize", "llama-perplexity"):
        text = PROGRAM.format(name=name, said=SAID, base=str(tmp_path / "base"))
        (tmp_path / name).write_text(f"#!{sys.executable}\n{text}")
        (tmp_path / name).chmod(stat.S_IRWXU)
    (tmp_path / "text").write_text("words")
    argv = [str(file), "--text", str(tmp_path / "text"), "--work", str(tmp_path / "work"), "--threads", "1"]
    argv += ["--llama-cpp", str(tmp_path), "--formats", "float32", "int8", "int4", "--repetitions", "0"]
    assert quality.main([*argv, "--json", str(tmp_path / "out.json")]) == 0
    rows = {row.name: row for row in read_rows(tmp_path / "out.json")}
    assert list(rows) == ["llama.cpp F32", "llama.cpp Q8_0", "llama.cpp Q4_0", *(f"{OURS} {w}" for w in argv[10:13])]
    assert rows["llama.cpp Q8_0"].file == "model-q8_0.gguf"
    assert rows[f"{OURS} float32"].kl == pytest.approx(0, abs=1e-5)
    assert rows[f"{OURS} float32"].top1 > 0.99
    assert 1e-6 < rows[f"{OURS} int8"].kl < rows[f"{OURS} int4"].kl
    assert (tmp_path / "work" / "model-f32.gguf").is_file()
    printed = capsys.readouterr().out
    assert "0.0047" in printed
    assert "95.9%" in printed


def test_a_program_that_fails_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [str(tmp_path / "m.gguf"), "--text", "t", "--work", str(tmp_path), "--llama-cpp", str(tmp_path)]
    assert quality.main(argv) == 1
    assert "there is no llama-quantize" in capsys.readouterr().err


ROWS = [
    Row("m", OURS, "int8", 0.034, 0.892, 16.4),
    Row("m", OURS, "int4", 0.38, 0.65, 20.7),
    Row("other", OURS, "int8", 0.5, 0.5, 30.0),
    Row("m", LLAMA_CPP, "Q8_0", 0.0047, 0.959, 15.9, "m-q8_0.gguf"),
    Row("m", LLAMA_CPP, "Q4_0", 0.32, 0.665, 19.2, "m-q4_0.gguf"),
]


def test_a_comparison_shows_the_quality_of_both(tmp_path: Path) -> None:
    (tmp_path / "m-f32-0123").mkdir()
    installed = Installed(tmp_path / "m-f32-0123", "int8", 1, llama_cpp_model=tmp_path / "m-q8_0.gguf")
    found = of_contenders(ROWS, installed)
    assert found == {OURS: ROWS[0], LLAMA_CPP: ROWS[3]}
    rounds = {name: [{"decode_tokens_per_s": 10.0}] for name in (OURS, LLAMA_CPP, "OpenVINO")}
    result = CaseResult(Case("decode"), rounds)
    plain, shown = report.table([result]), report.table([result], found)
    assert len(shown.columns) == len(plain.columns) + 2
    assert [list(column.cells) for column in shown.columns[-2:]] == [["0.0340, 89.2%"] * 2, ["0.0047, 95.9%", "-"]]
    record = report.as_json([result], installed, {}, found)
    assert record["quality"][LLAMA_CPP]["kl"] == 0.0047


def test_a_record_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "record.json").write_text(json.dumps({"rows": [{"model": 3}]}))
    with pytest.raises(SystemExit):
        compare.main([str(tmp_path), "--quality", str(tmp_path / "record.json")])
    assert "record.json rows[0].model is 3" in " ".join(capsys.readouterr().err.split())
