"""`python -m benchmarks.load` from the outside: what it says of a start is what the kernel and the engine say."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import pytest

from benchmarks import load
from tools.random_checkpoint.writer import Options, write_checkpoint

COUNTED_LATE = 1 << 20  # bytes: Linux adds up the pages of threads in batches, and the peak less often


def test_a_start_leaves_nothing_of_the_checkpoint_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytestconfig.cache.mkdir("kernels")))
    model, out = tmp_path / "model", tmp_path / "out.json"
    write_checkpoint("qwen-0.5b", model, Options(layers=1, vocab=2048))
    argv = [str(model), "--quantization", "int8", "--threads", "1", "--runs", "2", "--num-gpu-blocks-override", "1100"]
    assert load.main([*argv, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "2 start(s) of the engine process" in printed
    runs = json.loads(out.read_text())
    assert len(runs) == 2
    for run in runs:
        assert run["model_mapped_bytes"] == 0
        assert run["seconds"] > 0
        assert run["peak_bytes"] + COUNTED_LATE >= run["resident_bytes"] > run["weights_bytes"] > 2048 * 896
        assert run["kv_bytes"] == 1100 * 32 * 2 * 2 * 64 * 2  # blocks, tokens, K and V, heads, their size, bfloat16
        assert run["ratio"] == pytest.approx(run["peak_bytes"] / (run["weights_bytes"] + run["kv_bytes"]))


def test_mapped_pages_of_a_model_are_seen(tmp_path: Path) -> None:
    file, folder = tmp_path / "model" / "x.safetensors", Path("/proc/self")
    file.parent.mkdir()
    file.write_bytes(os.urandom(1 << 20))
    assert load.mapped_bytes(folder, file.parent) == 0
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert len(mapped[:]) == 1 << 20
        assert load.mapped_bytes(folder, file.parent) == load.mapped_bytes(folder, file) == 1 << 20
        assert load.mapped_bytes(folder, tmp_path / "mod") == 0


def test_a_model_that_cannot_be_loaded_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert load.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
