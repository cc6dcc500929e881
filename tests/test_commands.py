"""Subcommands from the outside: exit codes, tables, JSON."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from neuronserve.cli import main
from neuronserve.cli.every import BY_COMMAND, KINDS
from neuronserve.planner.settings.simulate import SimulateSettings
from neuronserve.server.settings.base import Settings, write_report
from neuronserve.server.settings.sources import names

API = {"fastapi", "uvicorn", "starlette"}
COMPILER = {"numba", "llvmlite"}
REPORT_LOADED = """
import sys, neuronserve.cli
code = neuronserve.cli.main(sys.argv[1:]) if sys.argv[1:] else 0
print(*sys.modules, sep="\\n", file=sys.stderr)
sys.exit(code)
"""
SAMPLE = Path(__file__).parent / "planner" / "published_sample.csv"


@pytest.mark.parametrize(
    ("argv", "more"),
    [
        ([], {"pydantic", "numpy", "logging"}),  # the import alone, as each engine's process does it
        (["ls", "--device", "inf2.xlarge"], {"numpy"}),
        (["plan", "llama-1b", "--device", "inf2.xlarge"], set()),
        (["simulate", "llama-1b", "--num-prompts", "2"], set()),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, list) else "",
)
def test_a_command_loads_only_what_it_needs(argv: list[str], more: set[str]) -> None:
    ended = subprocess.run([sys.executable, "-c", REPORT_LOADED, *argv], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in ended.stderr.split()}
    assert "neuronserve" in loaded
    assert not loaded & (COMPILER | API | {"transformers", "tokenizers", "huggingface_hub"} | more)


def test_a_misspelt_variable_is_refused_and_that_of_another_command_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["plan", "llama-1b", "--device", "inf2.xlarge"]
    monkeypatch.setenv("NEURONSERVE_DATA_PARALLEL_SIZE", "2")
    monkeypatch.setenv("NEURONSERVE_RANDOM_INPUT_LEN", "8")
    monkeypatch.setenv("NEURONSERVE_SERVICE_PORT", "80")
    monkeypatch.setenv("NEURONSERVE_INPUTS_LEN_SERVICE_HOST", "10.0.0.1")
    assert main(argv) == 0
    monkeypatch.setenv("NEURONSERVE_INPUT_LENGTH", "8")
    assert main(argv) == 2
    complaint = "NEURONSERVE_INPUT_LENGTH: there is no such setting (did you mean NEURONSERVE_INPUT_LEN?)"
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_explains_each_of_its_settings(kind: type[Settings]) -> None:
    for name, field in names(kind).items():
        assert field.description, name


def test_check_prints_groups_and_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    assert main(["calibrate", "--check", str(SAMPLE), "--json", str(out)]) == 0
    assert "decode_dense_inf2" in capsys.readouterr().out
    report = json.loads(out.read_text())
    assert report["is_fit"] is False
    group = report["groups"]["decode_dense_inf2"]
    assert group["n"] > 0
    assert 0 < group["all"]["median"] < 0.5


def test_a_table_that_is_none_is_refused_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("row_id,platform\n1\n")
    assert main(["calibrate", "--check", str(bad)]) == 2
    assert str(bad) in capsys.readouterr().err


def test_data_or_check_but_not_both(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["calibrate"], ["calibrate", "--data", "a", "--check", "b"]):
        assert main(argv) == 2
    assert "--check" in capsys.readouterr().err


def test_bench_serve_is_the_load_test_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "serve", "--help"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: neuronserve bench serve ")
    with pytest.raises(SystemExit):
        main(["bench", "serve", "--nonsense"])
    assert capsys.readouterr().err.startswith("neuronserve bench serve")


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["serv"], "neuronserve: error: there is no command 'serv': did you mean serve? (see neuronserve --help)\n"),
        (["bench", "latncy"], "neuronserve bench: error: there is no command 'latncy': did you mean latency? (see "),
        (["xyzzy"], "neuronserve: error: there is no command 'xyzzy' (see neuronserve --help)\n"),
    ],
)
def test_a_misspelt_command_is_answered_by_the_nearest(
    argv: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(answer)


def test_unknown_flags_of_other_commands_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "latency", "--nonsense"])
    assert end.value.code == 2
    assert "unrecognized arguments: --nonsense" in capsys.readouterr().err


def test_plan_answers_with_tables_json_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, picture = tmp_path / "plan.json", tmp_path / "plan.html"
    argv = ["plan", "llama-8b", "--request-rate", "1", "--tpot-ms", "60"]
    argv += ["--device", "inf2.xlarge", "--device", "inf2.8xlarge"]
    assert main([*argv, "--json", str(out), "--picture", str(picture)]) == 0
    assert "inf2.xlarge" in capsys.readouterr().out
    assert json.loads(out.read_text())
    assert "<svg" in picture.read_text()


def test_plan_takes_the_stack_of_the_server(tmp_path: Path) -> None:
    found = {}
    for stack in ("vllm-neuron", "nxdi-vllm"):
        out = tmp_path / f"{stack}.json"
        argv = ["plan", "llama-8b", "--device", "inf2.xlarge", "--input-len", "100", "--output-len", "900"]
        assert main([*argv, "--stack", stack, "--json", str(out)]) == 0
        report = json.loads(out.read_text())
        assert {row["stack"] for row in report["candidates"]} == {stack}
        found[stack] = [row["saturated_output_tokens_s"] for row in report["candidates"]]
    assert sorted(found["nxdi-vllm"]) != sorted(found["vllm-neuron"])


def test_plan_takes_limits_of_shares_a_budget_and_formats(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    limits = {"--ttft-p95-ms": "900", "--ttft-p99-ms": "1200", "--tpot-p95-ms": "40", "--tpot-p99-ms": "45"}
    argv = ["plan", "llama-8b", "--quantization", "int8,fp8", "--budget", "20", "--max-model-len", "3000"]
    assert main([*argv, *(word for pair in limits.items() for word in pair), "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    asked = {name: report["options"][name] for name in ("ttft_p95_s", "ttft_p99_s", "tpot_p95_s", "tpot_p99_s")}
    assert asked == {"ttft_p95_s": 0.9, "ttft_p99_s": 1.2, "tpot_p95_s": 0.04, "tpot_p99_s": 0.045}
    assert report["options"]["usd_per_hour"] == 20
    assert report["buckets"]["decode"] == 3000
    assert {row["dtype"] for row in report["candidates"]} == {"int8", "fp8"}
    best = report["candidates"][0]
    assert best["meets_slo"]
    assert best["quantiles_s"]["TPOT p99"] <= 0.045
    assert best["at_rate"]["on_demand"]["hourly_usd"] <= 20
    assert best["known"]["tpot_s"]["p10"] <= best["tpot_s"] <= best["known"]["tpot_s"]["p90"]


def test_plan_of_an_encoder_prices_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    argv = ["plan", "sentence-transformers/all-MiniLM-L6-v2", "--input-len", "256", "--request-rate", "5000"]
    assert main([*argv, "--json", str(out)]) == 0
    assert "per 1M texts" in " ".join(capsys.readouterr().out.split())
    report = json.loads(out.read_text())
    assert report["buckets"] == {"prefill": 256}
    assert report["candidates"][0]["at_rate"]["on_demand"]["texts_usd"] > 0


def test_a_report_has_null_for_an_infinite_number(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    write_report(out, {"rate": math.inf, "rows": [(1.5, -math.inf, math.nan)], "text": "inf"})
    assert json.loads(out.read_text(), parse_constant=pytest.fail) == {
        "rate": None,
        "rows": [[1.5, None, None]],
        "text": "inf",
    }


def test_simulate_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    reports = []
    for name in ("a", "b"):
        out = tmp_path / name
        argv = ["simulate", "llama-1b", "--num-prompts", "50", "--request-rate", "3", "--seed", "7", "--json", str(out)]
        assert main(argv) == 0
        reports.append(json.loads(out.read_text()))
    assert reports[0] == reports[1]
    assert reports[0]["completed"] == 50


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["plan", "llama-8c"], "llama-8"),
        (["plan", "llama-8b", "--stack", "static"], "--stack"),
        (["plan", "llama-8b", "--quantization", "int3"], "--quantization"),
        (["plan", "llama-8b", "--budget", "0"], "--budget"),
        (["plan", "bert-base-uncased", "--output-len", "3", "--tpot-ms", "9"], "--output-len, --tpot-ms: bert-base"),
        (["plan", "bert-base-uncased", "--input-len", "600"], "600: bert-base-uncased has 512 positions"),
        (["plan", "llama-8b", "--request-rate", "-1"], "-1"),
        (["simulate", "llama-8b", "--device", "inf9.xlarge"], "inf9.xlarge"),
        (["simulate", "llama-1b", "--trace", "/nowhere.csv"], "/nowhere.csv"),
    ],
)
def test_questions_without_an_answer_name_the_value(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert words in capsys.readouterr().err


def test_one_deployment_is_meant_where_nothing_else_is_said() -> None:
    described = {"device", "tensor_parallel_size", "data_parallel_size", "max_num_seqs", "device_memory_utilization"}
    kinds = [kind for kind in KINDS if described <= names(kind).keys()]
    assert {BY_COMMAND["serve"], SimulateSettings} <= set(kinds)
    for name in described:
        assert len({names(kind)[name].default for kind in kinds}) == 1, name
