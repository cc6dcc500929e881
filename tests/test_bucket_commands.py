"""Compiled lengths as users meet them: the commands agree on the lengths of a stack, and advise a missing one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neuronserve.cli import main

POWERS = [128, 256, 512, 1024, 2048]


def simulated(tmp_path: Path, stack: str, input_len: int, *more: str) -> dict[str, Any]:
    out = tmp_path / "simulation.json"
    argv = ["simulate", "llama-8b", "--device", "inf2.xlarge", "--tensor-parallel-size", "2", "--stack", stack]
    argv += ["--max-model-len", "2048", "--max-num-seqs", "4", "--num-prompts", "3", "--request-rate", "0.1"]
    argv += ["--random-input-len", str(input_len), "--random-output-len", "20", *more, "--json", str(out)]
    assert main(argv) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_simulate_pads_prompts_and_steps_to_the_buckets_of_its_stack(tmp_path: Path) -> None:
    bucketed, padded = (simulated(tmp_path, stack, 300) for stack in ("nxdi-vllm", "optimum-vllm"))
    assert bucketed["prefill_buckets"] == bucketed["decode_buckets"] == POWERS
    assert padded["prefill_buckets"] == padded["decode_buckets"] == [2048]
    assert bucketed["mean_ttft_ms"] < padded["mean_ttft_ms"] / 2
    assert bucketed["mean_tpot_ms"] < padded["mean_tpot_ms"]
    given = simulated(
        tmp_path, "nxdi-vllm", 300, "--context-encoding-buckets", "2048", "--token-generation-buckets", "2048"
    )
    assert given["mean_ttft_ms"] == pytest.approx(padded["mean_ttft_ms"])
    assert given["mean_tpot_ms"] == pytest.approx(padded["mean_tpot_ms"])


def test_a_prompt_as_long_as_its_bucket_needs_the_next_on_nxd_inference(tmp_path: Path) -> None:
    inside, edge, beyond = (simulated(tmp_path, "nxdi-vllm", tokens)["mean_ttft_ms"] for tokens in (1023, 1024, 1025))
    assert edge == pytest.approx(beyond)
    assert edge > 1.5 * inside
    assert simulated(tmp_path, "vllm-neuron", 1024)["mean_ttft_ms"] < edge / 1.5


def planned(tmp_path: Path, *flags: str) -> dict[str, Any]:
    out = tmp_path / "plan.json"
    argv = ["plan", "llama-8b", "--device", "inf2.xlarge", "--quantization", "bfloat16", *flags, "--json", str(out)]
    assert main(argv) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def advice(notes: list[str]) -> list[str]:
    return [note for note in notes if "add a bucket" in note]


def test_plan_advises_a_bucket_for_prompts_on_an_edge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (note,) = advice(planned(tmp_path, "--input-len", "1024")["notes"])
    assert note.startswith("first row: prompts of 1,024 tokens need the bucket of 2,048 (")
    assert "add a bucket of 1,152 (" in note
    assert "add a bucket of 1,152" in " ".join(capsys.readouterr().out.split())
    (note,) = advice(planned(tmp_path, "--input-len", "1015")["notes"])
    assert note.startswith("first row: prompts of 1,015 tokens plus a BOS or a template (16 tokens) need the bucket")
    assert not advice(planned(tmp_path, "--input-len", "900")["notes"])
    assert not advice(planned(tmp_path, "--input-len", "1024", "--stack", "optimum-vllm")["notes"])


def test_a_plan_prices_what_the_advised_bucket_would_save(tmp_path: Path) -> None:
    """The time in the advice is the one that a simulation with this bucket takes."""
    with_it = simulated(tmp_path, "nxdi-vllm", 1024, "--context-encoding-buckets", "1024,1152")
    without = simulated(tmp_path, "nxdi-vllm", 1024)
    assert with_it["mean_ttft_ms"] < 0.75 * without["mean_ttft_ms"]


def test_long_model_lengths_make_decode_no_dearer_with_buckets(tmp_path: Path) -> None:
    reports = [planned(tmp_path, "--max-model-len", length) for length in ("2048", "8192")]
    rows = [next(row for row in report["candidates"] if row["batch"] == 1) for report in reports]
    assert rows[1]["decode_s"] == pytest.approx(rows[0]["decode_s"])
    assert rows[1]["prefill_s"] == pytest.approx(rows[0]["prefill_s"])


def test_compile_advises_at_the_costliest_edge_between_its_lengths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    out = tmp_path / "report.json"
    argv = ["compile", str(tmp_path), "--report-only", "--device", "inf2.xlarge", "--json", str(out)]
    assert main([*argv, "--context-encoding-buckets", "512,2048"]) == 0
    assert "prompts of 512 tokens need the bucket of 2,048" in " ".join(capsys.readouterr().out.split())
    assert json.loads(out.read_text())["bucket_edge"].startswith("prompts of 512 tokens need the bucket of 2,048 (")
    assert main([*argv, "--context-encoding-buckets", "2048"]) == 0
    assert json.loads(out.read_text())["bucket_edge"] == ""
