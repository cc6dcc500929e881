"""`neuronserve bench latency` and `throughput` from the outside, and the arithmetic of their figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from neuronserve.cli import main
from neuronserve.server.bench.ceilings import BandwidthProbe, product_unit
from neuronserve.server.bench.drive import EngineDriver, StepTime
from neuronserve.server.bench.options import BatchShape
from neuronserve.server.bench.speed import throughput_of, tokens_of
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.settings.engine import EngineSettings
from tools.random_checkpoint.writer import Options, write_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("speed") / "tiny-llama"
    write_checkpoint("tiny-llama", directory, Options())
    return directory


def bench(pytestconfig: pytest.Config, *argv: str) -> int:
    return main(["bench", *argv, "--kernel-cache-dir", str(pytestconfig.cache.mkdir("kernels"))])


def report_of(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def test_latency_puts_speed_beside_the_ceilings_of_the_host(
    model: Path, tmp_path: Path, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "latency.json"
    argv = ("latency", str(model), "--quantization", "int8", "--batch-size", "1,3", "--input-len", "40")
    assert bench(pytestconfig, *argv, "--output-len", "4", "--num-iters", "1", "--json", str(out)) == 0
    assert "of reads" in capsys.readouterr().out
    report = report_of(out)
    assert [result["batch_size"] for result in report["results"]] == [1, 3]
    for result in report["results"]:
        names = ("prefill_tokens_per_s", "decode_tokens_per_s", "read_bandwidth_gb_s", "product_tops", "prefill_tops")
        assert all(result[name] > 0 for name in names)
        assert result["prefill_tile_fraction"] == pytest.approx(result["prefill_tops"] / result["product_tops"])
        assert 0 < result["prefill_tile_fraction"] < 1
        assert 0 < result["decode_bandwidth_fraction"] < 1
        assert result["product_unit"] == product_unit("int8").name
    assert report["decode_tokens_per_s"] == report["results"][0]["decode_tokens_per_s"]


def test_reads_faster_than_the_memory_are_said_to_come_from_the_caches(
    model: Path,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BandwidthProbe, "measure", lambda _: 1e-6)  # GB/s
    out = tmp_path / "latency.json"
    argv = ("latency", str(model), "--input-len", "8", "--output-len", "3", "--num-iters", "1", "--json", str(out))
    assert bench(pytestconfig, *argv) == 0
    assert "in cache" in capsys.readouterr().out
    assert report_of(out)["decode_bandwidth_fraction"] is None


def test_prefill_operations_are_two_for_each_weight_and_token(
    model: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    out = tmp_path / "latency.json"
    argv = ("latency", str(model), "--input-len", "64", "--output-len", "2", "--num-iters", "1", "--json", str(out))
    assert bench(pytestconfig, *argv) == 0
    report = report_of(out)
    hidden, ffn, heads, kv_heads, head_dim, layers, vocab = 64, 192, 8, 4, 16, 3, 384  # ffn padded from 176
    layer = hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * ffn
    operations = 2 * (64 * layers * layer + vocab * hidden)
    assert report["prefill_tops"] * report["prefill_s"] * 1e12 == pytest.approx(operations)


def test_latency_says_what_choosing_tokens_takes(
    model: Path, tmp_path: Path, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "latency.json"
    argv = ["latency", str(model), "--output-len", "3", "--num-iters", "1", "--json", str(out)]
    argv += ["--temperature", "0.8", "--top-k", "20", "--top-p", "0.9", "--min-p", "0.01"]
    assert bench(pytestconfig, *argv) == 0
    assert "sampling us" in capsys.readouterr().out
    report = report_of(out)
    assert 0 < report["sampling_us"] < report["decode_step_ms"] * 1e3
    assert report["sampling_fraction"] == pytest.approx(report["sampling_us"] / report["decode_step_ms"] / 1e3)


def test_a_context_is_not_computed_and_counts_as_what_decode_reads(
    model: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    out = tmp_path / "latency.json"
    argv = ["latency", str(model), "--context-len", "384,0", "--batch-size", "2", "--input-len", "8"]
    argv += ["--output-len", "4", "--num-iters", "1", "--kv-cache-dtype", "int8", "--block-size", "32"]
    assert bench(pytestconfig, *argv, "--json", str(out)) == 0
    behind, alone = report_of(out)["results"]
    assert (behind["context_len"], alone["context_len"]) == (384, 0)
    layers, kv_heads, token = 3, 4, 16 + 4  # bytes of a token's head: its elements and their scale
    assert behind["cache_gb_per_step"] * 1e9 == pytest.approx(2 * 2 * layers * kv_heads * token * (384 + 10))
    assert alone["cache_gb_per_step"] * 1e9 == pytest.approx(2 * 2 * layers * kv_heads * token * 10)
    read = behind["weight_gb_per_step"] + behind["cache_gb_per_step"]
    assert behind["decode_bandwidth_fraction"] == pytest.approx(
        read * 1e3 / behind["decode_step_ms"] / behind["read_bandwidth_gb_s"]
    )


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "bfloat16"])
def test_of_a_context_only_the_prompt_behind_it_is_computed(
    model: Path, pytestconfig: pytest.Config, kv_cache_dtype: str
) -> None:
    engine = load_engine(
        EngineSettings(
            model=str(model),
            kv_cache_dtype=kv_cache_dtype,
            max_model_len=256,
            max_num_batched_tokens=128,
            enable_prefix_caching=False,
            kernel_cache_dir=str(pytestconfig.cache.mkdir("kernels")),
        ).engine_config(model),
        lambda _: None,
    )
    size, kv = engine.cache.block_size, engine.placement.kv
    steps = EngineDriver(engine).run(BatchShape(1, 8, 4, context_len=6 * size))
    assert [(step.num_prefill_tokens, step.num_decode_tokens) for step in steps] == [(8, 0), *[(0, 1)] * 3]
    tensors = kv.shards[0].bytes.reshape(-1, engine.cache.num_blocks, kv.tensor_bytes // engine.cache.num_blocks)
    assert all(tensor[block].any() for tensor in tensors for block in range(1, 8))


@pytest.mark.parametrize(
    ("length", "words"),
    [("33", "must be whole blocks of 32 tokens"), ("960", "context_len + input_len + output_len is 992")],
)
def test_contexts_that_cannot_be_are_named(
    model: Path, length: str, words: str, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["latency", str(model), "--context-len", length, "--input-len", "24", "--output-len", "8"]
    assert bench(pytestconfig, *argv, "--max-model-len", "512", "--block-size", "32") == 2
    assert words in capsys.readouterr().err


def test_throughput_queues_what_does_not_fit_in_a_batch(
    model: Path, tmp_path: Path, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "throughput.json"
    argv = ("throughput", str(model), "--num-prompts", "5", "--batch-size", "2,4", "--input-len", "8,20")
    assert bench(pytestconfig, *argv, "--output-len", "3", "--num-iters", "1", "--json", str(out)) == 0
    assert "sequences" in capsys.readouterr().out
    results = report_of(out)["results"]
    assert [(r["batch_size"], r["input_len"]) for r in results] == [(2, 8), (4, 8), (2, 20), (4, 20)]
    for r in results:
        assert r["num_sequences"] == 5
        assert r["output_tokens_per_s"] * r["elapsed_s"] == pytest.approx(5 * 3)
        assert r["total_tokens_per_s"] * r["elapsed_s"] == pytest.approx(5 * (3 + r["input_len"]))
        assert r["prefill_tokens_per_s"] > 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["throughput", "--batch-size", "0"], "greater than or equal to 1"),
        (["throughput", "--input-len", "8,x"], "valid integer"),
        (["throughput", "--num-prompts", "0"], "--num-prompts"),
        (["latency", "--batch-size", ""], "--batch-size"),
        (["latency", "--top-p", "0"], "--top-p"),
    ],
)
def test_bad_settings_are_named(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *argv]) == 2
    assert words in capsys.readouterr().err


def test_sequences_longer_than_the_context_are_refused(
    model: Path, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("throughput", str(model), "--input-len", "30", "--output-len", "10", "--max-model-len", "32")
    assert bench(pytestconfig, *argv) == 2
    assert "input_len + output_len is 40: max_model_len is 32" in capsys.readouterr().err


def test_rates_are_of_the_steps_that_they_are_about() -> None:
    steps = [StepTime(2.0, 1.9, 0.0, 100, 0), StepTime(1.0, 0.9, 0.0, 20, 3), *[StepTime(0.5, 0.4, 0.0, 0, 4)] * 2]
    result = throughput_of(BatchShape(4, 30, 3), 4, [steps])
    assert result.elapsed_s == 4.0
    assert result.prefill_tokens_per_s == 40.0
    assert result.decode_tokens_per_s == 8.0
    assert result.output_tokens_per_s == 3.0
    assert result.total_tokens_per_s == 33.0
    assert throughput_of(BatchShape(4, 30, 3), 4, [steps[:2]]).decode_tokens_per_s is None


def test_the_last_token_of_a_sequence_is_not_computed() -> None:
    assert tokens_of(BatchShape(2, 10, 3), 5) == 60
