"""Measure one server with the project's load test and with guidellm, in turns, and print the figures side by side.

    python -m tools.guidellm_check [--model DIR] [--rounds 3]

Needs the extra `bench`. Names differ: guidellm's ITL, (last - first token) / (n - 1), is the TPOT of `vllm bench
serve`; its TPOT includes the first token. Its throughput is computed as tokens by duration, since its mean tokens/s is
that of a distribution over time. Both tools share the host with the server, so a busy host shows in the ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from neuronserve.loadtests import cli
from neuronserve.loadtests.local_server import neuronserve_command, running
from neuronserve.server.typed_json import decode

DEFAULT_MODEL = Path(__file__).resolve().parent.parent / "server" / "default_model"
LIMITS = {"output_throughput": 0.05, "median_ttft_ms": 0.10, "median_tpot_ms": 0.10}  # largest |ratio - 1|
GUIDELLM_TIMEOUT_S = 900.0

Figures = dict[str, float]  # figures of LIMITS, and the counts that show that both measured the same
COUNTS = ("completed", "total_output_tokens")


class _Successful(msgspec.Struct):
    median: float
    total_sum: float


class _Metric(msgspec.Struct):
    successful: _Successful


class _Totals(msgspec.Struct):
    successful: int


class _Metrics(msgspec.Struct):
    request_totals: _Totals
    output_token_count: _Metric
    time_to_first_token_ms: _Metric
    inter_token_latency_ms: _Metric


class _Benchmark(msgspec.Struct):
    duration: float  # s
    metrics: _Metrics


class _GuidellmReport(msgspec.Struct):
    """Fields of guidellm's report that are compared."""

    benchmarks: list[_Benchmark]


@dataclass(frozen=True, slots=True)
class ConstantLoad:
    """Load that both tools send: requests of one length at a constant rate."""

    rate: float  # requests/s
    num_requests: int
    input_tokens: int
    output_tokens: int


def measure_ours(url: str, load: ConstantLoad, directory: Path) -> Figures:
    """Run `python -m neuronserve.loadtests` once. Raises RuntimeError with its output if it fails."""
    path = directory / "ours.json"
    words = (
        f"--arrival constant --request-rate {load.rate} --num-prompts {load.num_requests} "
        f"--random-input-len {load.input_tokens} --random-output-len {load.output_tokens} "
        f"--max-lag-ms 1e6 --disable-progress --json {path}"
    )
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = cli.main(["--base-url", url, *words.split()])
    if code != 0:
        raise RuntimeError(f"the load test ended with code {code}:\n{output.getvalue()}")
    result = decode(path.read_bytes(), dict[str, Any])
    return {name: result[name] for name in (*COUNTS, *LIMITS)}


def measure_guidellm(url: str, model_name: str, tokenizer: Path, load: ConstantLoad, directory: Path) -> Figures:
    """Run guidellm once. Raises RuntimeError with its output if it fails."""
    path = directory / "guidellm.json"
    options = {
        "--backend": f"kind=openai_http,target={url},model={model_name},request_format=/v1/completions",
        "--profile": f"kind=constant,rate={load.rate}",
        "--constraint": f"kind=max_requests,count={load.num_requests}",
        "--data": f"kind=synthetic_text,prompt_tokens={load.input_tokens},output_tokens={load.output_tokens}",
        "--tokenizer": f"kind=hf_auto,model={tokenizer}",
        "--output": f"kind=json,path={path}",
    }
    words = [word for pair in options.items() for word in pair]
    command = [sys.executable, "-W", "ignore", "-m", "guidellm", "run", *words, "--disable-progress"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=GUIDELLM_TIMEOUT_S, env=environment
    )
    if ended.returncode != 0:
        raise RuntimeError(
            f"guidellm ended with code {ended.returncode}:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
        )
    [benchmark] = decode(path.read_bytes(), _GuidellmReport).benchmarks
    metrics = benchmark.metrics
    num_tokens = metrics.output_token_count.successful.total_sum
    return {
        "completed": metrics.request_totals.successful,
        "total_output_tokens": num_tokens,
        "output_throughput": num_tokens / benchmark.duration,
        "median_ttft_ms": metrics.time_to_first_token_ms.successful.median,
        "median_tpot_ms": metrics.inter_token_latency_ms.successful.median,
    }


Measure = Callable[[], Figures]


def in_turns(ours: Measure, theirs: Measure, rounds: int) -> list[tuple[Figures, Figures]]:
    """Return pairs of figures; the tools take turns to be first."""
    pairs = []
    for number in range(rounds):
        if number % 2 == 0:
            first = ours()
            pairs.append((first, theirs()))
        else:
            second = theirs()
            pairs.append((ours(), second))
    return pairs


def ratios(pairs: Sequence[tuple[Figures, Figures]]) -> Mapping[str, float]:
    """Return ours divided by guidellm's: the geometric mean over the rounds of each figure in LIMITS."""
    return {
        name: math.exp(statistics.fmean(math.log(ours[name] / theirs[name]) for ours, theirs in pairs))
        for name in LIMITS
    }


def table(pairs: Sequence[tuple[Figures, Figures]]) -> Table:
    """Return the figures of both, medians over the rounds, and their differences."""
    result = Table(title=f"ours and guidellm, {len(pairs)} round(s)")
    for heading in ("figure", "ours", "guidellm", "ratio", "agrees within", "verdict"):
        result.add_column(heading, justify="left" if heading == "figure" else "right")
    apart = ratios(pairs)
    for name in (*COUNTS, *LIMITS):
        ours, theirs = (statistics.median(pair[side][name] for pair in pairs) for side in (0, 1))
        row = [name, f"{ours:,.2f}", f"{theirs:,.2f}"]
        if name in LIMITS:
            verdict = "agree" if abs(apart[name] - 1) <= LIMITS[name] else "APART"
            row += [f"{apart[name]:.3f}", f"{LIMITS[name]:.0%}", verdict]
        result.add_row(*row)
    return result


def compare(
    url: str, model_name: str, tokenizer: Path, load: ConstantLoad, rounds: int
) -> list[tuple[Figures, Figures]]:
    """Measure the server at `url` with both tools, in turns."""
    with tempfile.TemporaryDirectory(prefix="guidellm-check-") as name:
        directory = Path(name)
        return in_turns(
            lambda: measure_ours(url, load, directory),
            lambda: measure_guidellm(url, model_name, tokenizer, load, directory),
            rounds,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns 0 if all figures agree, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tools.guidellm_check", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, default=DEFAULT_MODEL, help="checkpoint directory (default: built-in)")
    parser.add_argument("--rounds", type=int, default=3, help="times each tool measures")
    parser.add_argument("--request-rate", type=float, default=2.0, help="requests a second, at constant distances")
    parser.add_argument("--num-prompts", type=int, default=60, help="requests of one round")
    parser.add_argument("--input-len", type=int, default=256, help="prompt tokens")
    parser.add_argument("--output-len", type=int, default=64, help="generated tokens")
    parser.epilog = "Other arguments are the server's: --quantization int8 --cpu-threads 1."
    args, of_server = parser.parse_known_args(argv)
    load = ConstantLoad(args.request_rate, args.num_prompts, args.input_len, args.output_len)
    with running(neuronserve_command([str(args.model), "--served-model-name", "checked", *of_server])) as url:
        pairs = compare(url, "checked", args.model, load, args.rounds)
    Console().print(table(pairs))
    return 0 if all(abs(ratio - 1) <= LIMITS[name] for name, ratio in ratios(pairs).items()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
