"""The same server measured by guidellm and by us, where guidellm is installed (the `bench` extra).

guidellm's own names: its ITL, (last - first token) / (n - 1), is the TPOT of `vllm bench serve`; its TPOT includes the
first token. Its throughput is read as tokens by duration, since its mean tokens/s is of a distribution over time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtests import cli
from loadtests.local_server import mock_command, running
from tools.random_checkpoint.writer import write_checkpoint

RATE, SECONDS, INPUT_TOKENS, OUTPUT_TOKENS = 4, 10, 64, 32

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("guidellm") is None, reason="guidellm is not installed (it is in the extra: bench)"
)


def guidellm(url: str, model: Path, path: Path) -> dict[str, Any]:
    """Its benchmark of the scripted server, as it reports it."""
    options = {
        "--backend": f"kind=openai_http,target={url},model=mock,request_format=/v1/completions",
        "--profile": f"kind=constant,rate={RATE}",
        "--constraint": f"kind=max_requests,count={RATE * SECONDS}",
        "--data": f"kind=synthetic_text,prompt_tokens={INPUT_TOKENS},output_tokens={OUTPUT_TOKENS}",
        "--tokenizer": f"kind=hf_auto,model={model}",
        "--output": f"kind=json,path={path}",
    }
    words = [word for pair in options.items() for word in pair]
    command = [sys.executable, "-W", "ignore", "-m", "guidellm", "run", *words, "--disable-progress"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, check=True, capture_output=True, timeout=300, env=environment)
    [benchmark] = json.loads(path.read_text())["benchmarks"]
    return dict(benchmark)


def test_guidellm_agrees_within_5_percent_on_throughput_and_10_on_latency(tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_checkpoint("tiny-llama", model)
    words = (
        f"--arrival constant --request-rate {RATE} --duration-s {SECONDS} --random-input-len {INPUT_TOKENS} "
        f"--random-output-len {OUTPUT_TOKENS} --max-lag-ms 1e6 --disable-progress --json {tmp_path}/ours.json"
    )
    with running(mock_command(ttft_ms=200, itl_ms=20)) as url:
        assert cli.main(["--base-url", url, *words.split()]) == 0
        theirs = guidellm(url, model, tmp_path / "theirs.json")
    ours = json.loads((tmp_path / "ours.json").read_text())
    metrics = theirs["metrics"]
    tokens = metrics["output_token_count"]["successful"]["total_sum"]
    assert ours["output_throughput"] == pytest.approx(tokens / theirs["duration"], rel=0.05)
    assert ours["median_ttft_ms"] == pytest.approx(metrics["time_to_first_token_ms"]["successful"]["median"], rel=0.1)
    assert ours["median_tpot_ms"] == pytest.approx(metrics["inter_token_latency_ms"]["successful"]["median"], rel=0.1)
