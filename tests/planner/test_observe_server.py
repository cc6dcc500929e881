"""`observe` finds the coefficients of a server that is paced by known ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from neuronserve.cli import main
from neuronserve.planner.model_names import resolve_shape
from neuronserve.planner.observe.deployment import Deployment
from neuronserve.server.config import CatalogConfig
from neuronserve.server.cost.calibration import use_calibration
from neuronserve.server.cost.stacks import STACKS, HostWork
from neuronserve.server.device.catalog import instance, use_catalog
from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import running_server
from tests.planner.observing import truth

# Prompts of so small a model take no time on the real part: on this one their length counts.
SLOW_PART = '[chips.Inferentia2]\ntflops = {bfloat16 = 0.5}\nsource = "made up"\ndate = 2026-11-22\n'
DECODE, PREFILL = 80.0, 20.0  # a step of 0.1 s and prompts of 0.25 s and more, beside which the host's noise is small
HOST = HostWork(slot_s=0.01)  # what a request's own way takes, a paced server does not add
WITHIN = 0.05
TRIES = 2  # of a measurement on a machine that does other things too


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[str]:
    file = tmp_path / "slow.toml"
    file.write_text(SLOW_PART)
    use_catalog(CatalogConfig(str(file)))
    yield str(file)
    use_catalog(CatalogConfig())
    use_calibration(None)


def observed(url: str, out: Path, flags: list[str]) -> dict[str, Any]:
    argv = ["observe", url, "--model", str(DEFAULT_MODEL), *flags, "-o", str(out)]
    assert main([*argv, "--repeats", "7"]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.thorough
def test_a_paced_servers_coefficients_come_back(tmp_path: Path, catalog: str, kernel_cache: str) -> None:
    deployment = Deployment(
        model_name="default",
        model=resolve_shape(str(DEFAULT_MODEL)),
        instance=instance("inf2.xlarge"),
        stack=STACKS["vllm-neuron"],  # prompts in buckets, without which `request_s` would be in the prefill scale
        max_model_len=512,
        max_num_seqs=8,
        tensor_parallel_size=2,
    )
    known, file = truth(deployment, DECODE, PREFILL, HOST), tmp_path / "known.json"
    file.write_text(json.dumps(known.as_dict()))
    flags = ["--catalog", catalog, "--device", "inf2.xlarge", "--tensor-parallel-size", "2"]
    flags += ["--max-model-len", "512", "--max-num-seqs", "8", "--stack", "vllm-neuron"]
    more = ["--calibration", str(file), "--pace", "device", "--kernel-cache-dir", kernel_cache]
    right = pytest.approx({"decode_scale": DECODE, "prefill_scale": PREFILL, "slot_s": HOST.slot_s}, rel=WITHIN)
    with running_server(
        DEFAULT_MODEL, *flags, *more, "--max-num-batched-tokens", "1024", program="neuronserve"
    ) as server:
        assert httpx.get(f"{server.url}/inventory").json()["time"]["calibration"] == known.version
        for _ in range(TRIES):
            found = observed(server.url, tmp_path / "mine.json", flags)
            values = {each["name"]: each["value"] for each in found["unknowns"] if each["name"] != "request_s"}
            if values == right:
                break
    assert values == right
    coefficients = found["calibration"]["coefficients"]
    stored = {name: each["value"] for name, each in coefficients.items()}
    assert stored == pytest.approx(dict(known.coefficients), rel=WITHIN)
