"""The report of `compile`: each graph of the accelerator, the cost of padding, and the compile time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neuronserve.cli import main
from neuronserve.server.config import CompileConfig, NeuronConfig
from neuronserve.server.config.formats import RequestedFormats, WeightFormats
from neuronserve.server.device.buckets import BucketLists
from neuronserve.server.engine.load.compile_report import CompileReport, compile_report
from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.cost.pricing import SMALL, small_pricer

BFLOAT16 = WeightFormats("bfloat16")


def report(
    buckets: BucketLists, neuron: NeuronConfig | None = None, device: str = "inf2.xlarge", tp: int = 1
) -> CompileReport:
    config = CompileConfig(
        "m",
        "out",
        tp,
        RequestedFormats("bfloat16"),
        "k",
        device=device,
        max_num_seqs=4,
        neuron=neuron or NeuronConfig(),
    )
    return compile_report(config, SMALL, BFLOAT16, buckets)


def test_there_is_a_row_for_each_graph_with_the_pricers_time() -> None:
    found = report(BucketLists((128, 512), (512,)))
    assert [(graph.phase, graph.batch, graph.positions, graph.tokens) for graph in found.graphs] == [
        ("context encoding", 1, 128, 128),
        ("context encoding", 1, 512, 512),
        ("token generation", 4, 512, 4),
    ]
    pricer = small_pricer()
    expected = [pricer.prefill_ns(0, 128), pricer.prefill_ns(0, 512), pricer.decode_ns(512, 4)]
    assert [round((graph.modelled_s or 0) * 1e9) for graph in found.graphs] == expected
    assert found.time.graphs == 3


def test_padding_is_the_mean_over_all_lengths() -> None:
    lists = BucketLists((100, 300, 1000), (1000,))
    found = report(lists)
    for phase, buckets in (("context encoding", lists.context_encoding), ("token generation", lists.token_generation)):
        chosen = [min(bucket for bucket in buckets if bucket >= length) for length in range(1, 1001)]
        assert found.padding[phase] == pytest.approx(1 - sum(range(1, 1001)) / sum(chosen))
        for graph in (graph for graph in found.graphs if graph.phase == phase):
            lengths = [length for length, bucket in enumerate(chosen, 1) if bucket == graph.positions]
            assert graph.share == len(lengths) / 1000
            assert graph.padding == pytest.approx(1 - sum(lengths) / len(lengths) / graph.positions)


def test_inputs_and_outputs_follow_from_where_tokens_are_sampled() -> None:
    (_, device), (_, host) = (
        report(BucketLists((128,), (512,)), NeuronConfig(samples_on_device=place)).graphs for place in (True, False)
    )
    # 4 slots: id and position, mask, three numbers of the slot, three of its sampling, and the token
    assert device.io_bytes == 4 * 4 * (2 + 512 + 3 + 3 + 1)
    assert host.io_bytes - device.io_bytes == 4 * 4 * (SMALL.vocab_size - 1)


def test_decode_is_compiled_for_each_batch_and_length() -> None:
    found = report(BucketLists((128,), (256, 512)), NeuronConfig(decode_batches=(1, 4)))
    decodes = [(graph.batch, graph.positions) for graph in found.graphs if graph.phase == "token generation"]
    assert decodes == [(1, 256), (1, 512), (4, 256), (4, 512)]


def test_a_part_without_so_many_cores_leaves_the_times_out() -> None:
    found = report(BucketLists((128,), (128,)), tp=4)
    assert [graph.modelled_s for graph in found.graphs] == [None, None]
    assert found.note == "no modelled times: tensor_parallel_size is 4: inf2.xlarge has 2 NeuronCores"


def test_a_report_alone_needs_no_weights_and_writes_no_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((DEFAULT_MODEL / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 48}))
    argv = ["compile", str(tmp_path), "--report-only", "--max-model-len", "512", "--quantization", "int8"]
    assert main([*argv, "--json", str(tmp_path / "report.json")]) == 0
    assert "Graphs for 1 core(s) of inf2.xlarge" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert [graph["positions"] for graph in report["graphs"]] == [128, 256, 512] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "report.json"]
    assert main([*argv, "--max-model-len", "1000000"]) == 2
    assert "max_model_len is 1000000" in capsys.readouterr().err


def test_the_command_prints_it_and_writes_json(
    tmp_path: Path, kernel_cache: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.json"
    config = '{"override_neuron_config": {"context_encoding_buckets": [128, 256], "seq_len": 512, "batch_size": 2}}'
    argv = ["compile", "-o", str(tmp_path / "out"), "--kernel-cache-dir", kernel_cache, "--json", str(file)]
    assert main([*argv, "--additional-config", config]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Graphs for 1 core(s) of inf2.xlarge" in shown
    assert "outside of the measured range" in shown
    content = json.loads(file.read_text())
    assert {graph["positions"] for graph in content["graphs"] if graph["phase"] == "context encoding"} == {128, 256}
    assert {graph["batch"] for graph in content["graphs"] if graph["phase"] == "token generation"} == {2}
    assert content["time"]["low_s"] < content["time"]["seconds"] < content["time"]["high_s"]
    manifest = json.loads((tmp_path / "out" / "neuronserve.json").read_text())
    assert manifest["buckets"]["context_encoding"] == [128, 256]
    monkeypatch.setenv("NEURON_COMPILED_ARTIFACTS", str(tmp_path / "out"))
    assert main(["bench", "latency", "no/such-model", "--context-encoding-buckets", "64"]) == 2
    assert "this model was compiled for 128, 256" in capsys.readouterr().err
    monkeypatch.setenv("NEURON_COMPILED_ARTIFACTS", str(tmp_path))
    assert main(["bench", "latency", "--device", "inf9"]) == 2
    assert f"NEURON_COMPILED_ARTIFACTS: {tmp_path} holds no compiled model" in capsys.readouterr().err
