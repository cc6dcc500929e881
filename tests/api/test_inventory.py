"""The inventory of a server, asked for and written at the start."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from neuronserve.server import __version__
from neuronserve.server.cost.calibration import default_calibration
from tests.api.serving import running_server
from tests.api.telemetry.scraping import scrape


@pytest.mark.slow
def test_it_names_what_a_figure_stands_on(checkpoint: Path) -> None:
    flags = ("--max-num-seqs", "8", "--max-model-len", "300", "--price-basis", "reserved", "--pace", "device")
    with running_server(checkpoint, *flags) as server:
        told = httpx.get(server.url + "/inventory").json()
    assert told["model"]["names"] == ["fake"]
    assert told["model"]["weights"] == {"sha256": "00", "of": "manifest"}
    assert told["device"] == {
        "instance": "inf2.xlarge",
        "chip": "Inferentia2",
        "num_cores": 2,
        "cores_used": 1,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "num_instances": 1,
    }
    assert told["compiled"]["context_encoding_buckets"] == [128, 300]
    assert told["compiled"]["token_generation_buckets"] == [300]
    assert told["compiled"]["max_num_seqs"] == 8
    core = {"weights": 700, "kv": 200, "budget": 950, "capacity": 1000}
    assert told["memory"] == {"core": core, "host": {"weights": 1400, "partial_sums": 64}}
    assert told["kernels"] == {"compiled_for": "avx2", "matmul": "avx2"}
    assert told["parsers"] == {"tool_calls": "none", "reasoning": "none"}
    assert told["time"] == {"pace": "device", "calibration": default_calibration().version, "extrapolated": []}
    price = told["price"]
    assert (price["usd_per_hour"], price["basis"], price["date"]) == (0.328, "reserved", "2024-09-16")
    assert told["versions"]["neuronserve"] == __version__
    assert "numba" in told["versions"]


@pytest.mark.slow
def test_groups_of_4_bit_weights_are_told_apart(checkpoint: Path) -> None:
    told, prints = [], []
    for size in ("32", "64"):
        with running_server(checkpoint, "--quantization", "int4", "--quantization-group-size", size) as server:
            told.append(httpx.get(server.url + "/inventory").json()["model"]["quantization_groups"])
            body = {"model": "fake", "prompt": [1, 2], "max_tokens": 1}
            prints.append(httpx.post(server.url + "/v1/completions", json=body).json()["system_fingerprint"])
    assert told == [{"size": 32, "is_symmetric": True}, {"size": 64, "is_symmetric": True}]
    assert prints[0] != prints[1]


def test_several_engines_leave_fewer_cores_unused(checkpoint: Path) -> None:
    with running_server(checkpoint, "--data-parallel-size", "2") as server:
        device = httpx.get(server.url + "/inventory").json()["device"]
        seen = scrape(server.url)
    assert (device["data_parallel_size"], device["cores_used"], device["num_cores"]) == (2, 2, 2)
    assert seen.value("neuronserve:cost_usd_total", kind="unused_cores") == 0
    for engine in ("0", "1"):
        assert seen.value("neuronserve:device_seconds_total", kind="idle", engine=engine) > 0


@pytest.mark.slow
def test_a_price_that_is_given_has_no_date(checkpoint: Path) -> None:
    with running_server(checkpoint, "--usd-per-hour", "0.25") as server:
        price = httpx.get(server.url + "/inventory").json()["price"]
    assert price == {"usd_per_hour": 0.25, "basis": "given", "date": None, "source": "--usd-per-hour"}


@pytest.mark.slow
def test_the_log_has_it_as_a_field_and_nothing_of_it_as_text(checkpoint: Path) -> None:
    with running_server(checkpoint, "--log-format", "json") as server:
        lines = [json.loads(line) for line in server.log.splitlines()]
        (serving,) = [line for line in lines if line["message"].startswith("serving ")]
        assert serving["inventory"] == httpx.get(server.url + "/inventory").json()
    with running_server(checkpoint) as server:
        assert "instance" not in server.log
