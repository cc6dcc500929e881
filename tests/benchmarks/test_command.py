"""`python -m benchmarks.compare` from the outside, with this engine alone, and what it makes of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare, report
from benchmarks.interleave import CaseResult
from benchmarks.peers import OURS, Installed, contenders
from benchmarks.records import Case, Contender, Missing, Skipped
from tools.random_checkpoint.writer import Options, write_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("compare") / "tiny-llama"
    write_checkpoint("tiny-qwen2", directory, Options())
    return directory


def installed(folder: Path, **paths: Any) -> Installed:
    return Installed(folder, "int8", 1, **paths)


@pytest.mark.slow
def test_without_peers_this_engine_is_measured_and_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytestconfig.cache.mkdir("kernels")))
    for flag in compare.PATHS:
        monkeypatch.delenv(compare._variable(flag), raising=False)
    model, out = tmp_path / "model", tmp_path / "out.json"
    write_checkpoint("qwen-0.5b", model, Options(layers=1, vocab=512))
    argv = [str(model), "--workload", "prefill", "--repetitions", "1", "--threads", "1", "--json", str(out)]
    assert compare.main(argv) == 0
    printed = capsys.readouterr().out
    assert "without llama.cpp: --llama-cpp is not given" in printed
    assert "without OpenVINO: --openvino-python is not given" in printed
    (case,) = json.loads(out.read_text())["cases"]
    assert case["rounds"][OURS][0]["prefill_tokens_per_s"] > 0
    assert case["ratios"] == []


def test_paths_come_from_flags_or_the_environment(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURONSERVE_BENCH_VLLM_MODEL", "/from/environment")
    monkeypatch.setenv("NEURONSERVE_BENCH_LLAMA_CPP", "/from/environment")
    args = compare._parser().parse_args([str(checkpoint), "--llama-cpp", "/from/flag"])
    assert compare._path(args, "--llama-cpp") == Path("/from/flag")
    assert compare._path(args, "--vllm-model") == Path("/from/environment")
    assert compare._path(args, "--openvino-model") is None


def test_a_peer_is_found_in_its_build_folder_or_missing_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    model = tmp_path / "m.gguf"
    there = installed(tmp_path, llama_cpp=tmp_path, llama_cpp_model=model)
    assert _missing(there, "llama.cpp") == f"--llama-cpp: there is no llama-bench in {tmp_path} or its bin folder"
    (tmp_path / "bin" / "llama-bench").touch()
    assert _missing(there, "llama.cpp") == f"--llama-cpp-model: there is no {model}"
    model.touch()
    assert _missing(there, "llama.cpp") is None
    assert _missing(there, "OpenVINO") == "--openvino-python is not given"


def _missing(where: Installed, name: str) -> str | None:
    found: list[Contender | Missing] = list(contenders("decode", where, 0))
    assert found[0].name == OURS
    (peer,) = (each for each in found if each.name == name)
    return peer.reason if isinstance(peer, Missing) else None


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["/nowhere"], "no config.json"),
        (["MODEL", "--workload", "chess"], "chess"),
        (["MODEL", "--repetitions", "0"], "1 or more"),
        (["MODEL", "--json", "/nowhere/out.json"], "no folder"),
        (["MODEL", "--peers", "gpt"], "gpt"),
    ],
)
def test_bad_arguments_are_named(
    checkpoint: Path, argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        compare.main([str(checkpoint) if word == "MODEL" else word for word in argv])
    assert end.value.code == 2
    assert words in capsys.readouterr().err


def http_result() -> CaseResult:
    def rounds(*values: float) -> list[dict[str, float]]:
        return [{"output_throughput": v, "median_ttft_ms": 1000 / v, "median_tpot_ms": 50.0} for v in values]

    skipped = [Skipped("llama.cpp", "http 8", "ended")]
    return CaseResult(Case("http", 8, 16), {OURS: rounds(200, 240), "vLLM": rounds(100, 80)}, skipped)


def test_the_report_has_every_metric_the_reasons_and_the_spread() -> None:
    result = http_result()
    found = {metric.name: ratio.median for _, metric, ratio in report.ratios(result)}
    assert found == {"output_throughput": 2.5, "median_ttft_ms": pytest.approx(5 / 12), "median_tpot_ms": 1.0}
    text = "\n".join(report.notes([result]))
    assert "http 8: without llama.cpp: ended" in text
    assert "repeat it" in text
    assert "50.0%" in text
    assert report.table([result]).row_count == 3


def test_the_json_keeps_every_round(checkpoint: Path) -> None:
    record = report.as_json([http_result()], installed(checkpoint), {})
    (case,) = record["cases"]
    assert case["size"] == 8
    assert len(case["rounds"]["vLLM"]) == 2
    assert {entry["metric"]: entry["more_is_better"] for entry in case["ratios"]}["median_ttft_ms"] is False
    assert json.loads(json.dumps(record)) == record
    assert str(checkpoint.parent) not in json.dumps(record)
