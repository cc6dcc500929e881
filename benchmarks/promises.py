"""Promises of scheduling, measured over HTTP: `python -m benchmarks.promises`. Fails where a goal is missed.

Each row compares two settings of one server under the same streams of requests, or one setting with and without a
stream; a stream has a key of its own. With `--pace device`, the default, the accelerator is slower than Inferentia2, so
that the built-in model takes about as long as a larger one, and the host computes each step in time. Of another MODEL
use `--pace host`. Only with that there are the rows of HTTP beside the same work in process; with `--cpu-threads 1` two
cores are enough for an engine with a core of its own beside API and client. Processor time of each is on stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from benchmarks.process import cpu_seconds, throughput_in_process
from benchmarks.records import BenchmarkError
from neuronserve.loadtests.bench import measure
from neuronserve.loadtests.local_server import neuronserve_command, running
from neuronserve.loadtests.plan import make_plan
from neuronserve.loadtests.result import make_result
from neuronserve.loadtests.session import run_loop
from neuronserve.loadtests.specs import ArrivalSpec, DatasetSpec, EndpointSpec, RunSpec, Scenario
from neuronserve.server.device.chips import INFERENTIA2
from neuronserve.server.settings.model import DEFAULT_MODEL
from neuronserve.server.workload.slo import Slo

MEMORY_SLOWNESS, COMPUTE_SLOWNESS = 8, 200  # a step of 64 tokens takes 17 ms, a prompt of 512 40 ms
MAX_LAG_MS = 100.0  # the server computes on the generator's CPUs
Result = Mapping[str, Any]
Results = Mapping[str, Result]
NO_SLO = Slo()


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one key, from `start_s` on."""

    dataset: DatasetSpec
    arrival: ArrivalSpec
    slo: Slo = NO_SLO
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Side:
    """Settings of the server, and the streams that it gets."""

    flags: Sequence[str]
    streams: Mapping[str, Stream]
    is_in_process: bool = False  # `bench throughput` has the one stream instead of a server


@dataclass(frozen=True, slots=True)
class Row:
    """A goal: the figure of the first side over the best of the others is at most, or at least, `goal`."""

    name: str
    sides: Sequence[Side]
    figure: Callable[[Results], float]
    unit: str
    goal: float
    is_most: bool = field(default=True)

    def best(self, figures: Sequence[float]) -> float:
        return min(figures) if self.is_most else max(figures)

    def is_met(self, ratio: float) -> bool:
        return ratio <= self.goal if self.is_most else ratio >= self.goal


def _random(count: int, inputs: int, outputs: int, ratio: float = 0.0) -> DatasetSpec:
    return DatasetSpec(num_prompts=count, random_input_len=inputs, random_output_len=outputs, random_range_ratio=ratio)


def _of(stream: str, key: str) -> Callable[[Results], float]:
    return lambda results: float(results[stream][key])


def _output_per_s(results: Results) -> float:
    return float(sum(each["output_throughput"] for each in results.values()))


def _tokens_per_s(results: Results) -> float:
    tokens = sum(each["total_input_tokens"] + each["total_output_tokens"] for each in results.values())
    return float(tokens / max(each["duration"] for each in results.values()))


FAIR, FCFS, SLO = (("--scheduling-policy", policy) for policy in ("fair", "fcfs", "slo"))
AUTO = ("--step-time-target-ms", "auto")
SHARED = Stream(
    DatasetSpec("prefix", num_prompts=256, prefix_len=1024, num_prefixes=8, random_input_len=64, random_output_len=32),
    ArrivalSpec(max_concurrency=64),
)
# The flood has more requests open than the batch has places, and outlasts the other stream.
FLOOD = Stream(_random(4000, 576, 128, 0.75), ArrivalSpec(max_concurrency=96, duration_s=48.0))
QUIET = Stream(_random(1, 576, 32, 0.75), ArrivalSpec(request_rate=2.2, duration_s=42.0), start_s=4.0)
# 1.2 times the rate of requests that the device completes at most.
MANY = Stream(_random(1, 1024, 64, 0.5), ArrivalSpec(request_rate=9.6, duration_s=40.0), Slo(ttft_ms=1000.0))
DECODES = Stream(_random(32, 32, 400), ArrivalSpec())
BURST = Stream(_random(32, 512, 16), ArrivalSpec(), start_s=3.0)

SIZES, MOST = (128, 256, 512, 1024), ("--max-num-batched-tokens", "1024")


def _closed(connections: int) -> dict[str, Stream]:
    dataset = _random(max(8, 2 * connections), 192, 48, 0.5)
    return {f"c{connections}": Stream(dataset, ArrivalSpec(max_concurrency=connections))}


def _sizes(connections: int) -> Row:
    """Return the row of target auto beside fixed sizes of a step."""
    sides = [Side(("--max-num-batched-tokens", str(size)), _closed(connections)) for size in SIZES]
    figure = _of(f"c{connections}", "mean_e2el_ms")
    name = f"{connections} connections: auto over the best fixed step"
    return Row(name, (Side((*AUTO, *MOST), _closed(connections)), *sides), figure, "E2EL ms", 1.02)


def _replicas(count: int) -> Row:
    """Return the row of replicas beside one server, each with 8 connections."""
    many, one = (
        {f"r{each}": Stream(_random(48 * each, 192, 128), ArrivalSpec(max_concurrency=8 * each))} for each in (count, 1)
    )
    sides = Side(("--replicas", str(count)), many), Side((), one)
    return Row(f"{count} replicas over one", sides, _tokens_per_s, "tokens/s", 0.95 * count, is_most=False)


def _over_http(connections: int, goal: float, *flags: str) -> Row:
    dataset = _random(max(64, 3 * connections), 64, 256)
    streams = {f"c{connections}": Stream(dataset, ArrivalSpec(max_concurrency=connections))}
    sides = Side(flags, streams), Side(flags, streams, is_in_process=True)
    name = f"{connections} connections: HTTP over in process {' '.join(flags)}"
    return Row(name.rstrip(), sides, _output_per_s, "tokens/s", goal, is_most=False)


ROWS = (
    Row(
        "8 prefixes of 1,024 tokens, 64 users: cached over not",
        (Side((), {"a": SHARED}), Side(("--no-enable-prefix-caching",), {"a": SHARED})),
        _of("a", "median_ttft_ms"),
        "TTFT p50 ms",
        1 / 5,
    ),
    Row(
        "quiet key: beside a flood over alone",
        (Side(FAIR, {"quiet": QUIET, "flood": FLOOD}), Side(FAIR, {"quiet": QUIET})),
        _of("quiet", "p99_ttft_ms"),
        "TTFT p99 ms",
        1.3,
    ),
    Row(
        "flood: fair over fcfs",
        (Side(FAIR, {"quiet": QUIET, "flood": FLOOD}), Side(FCFS, {"quiet": QUIET, "flood": FLOOD})),
        _tokens_per_s,
        "tokens/s",
        0.98,
        is_most=False,
    ),
    Row(
        "1.2 times the capacity: slo over fcfs",
        (Side(SLO, {"a": MANY}), Side(FCFS, {"a": MANY})),
        _of("a", "request_goodput"),
        "good requests/s",
        1.5,
        is_most=False,
    ),
    Row(
        "32 decodes: beside a burst of 32 prompts over alone",
        (Side(AUTO, {"decodes": DECODES, "burst": BURST}), Side(AUTO, {"decodes": DECODES})),
        _of("decodes", "p99_itl_ms"),
        "ITL p99 ms",
        1.5,
    ),
    *map(_sizes, (1, 8, 16, 32)),
    *map(_replicas, (2, 4)),
    *(_over_http(count, 0.65) for count in (8, 32, 64)),
    *(_over_http(count, 0.9, "--cpu-threads", "1") for count in (8, 32, 64)),
)


class Bench:
    """Starts a server for each side, and measures its streams."""

    def __init__(self, model: str, flags: Sequence[str], directory: Path, seed: int) -> None:
        self._model, self._directory, self._seed = model, directory, seed
        self._flags = [model, "--max-num-seqs", "64", *flags]
        self._known: dict[tuple[Any, ...], Results] = {}

    def results(self, side: Side) -> Results:
        """Measure a side once, however many rows have it. Raises BenchmarkError for a run that says nothing."""
        known = (*side.flags, *side.streams, side.is_in_process)
        if known not in self._known and side.is_in_process:
            self._known[known] = self._in_process(side)
        elif known not in self._known:
            keys = self._directory / "keys.yaml"
            keys.write_text(_keys(side.streams))
            flags = [*self._flags, *side.flags, "--api-keys-file", str(keys)]
            with running(neuronserve_command(flags)) as url:
                before = cpu_seconds()
                self._known[known] = results = run_loop(self._measure(url, side.streams))
                num_tokens = sum(each["total_output_tokens"] for each in results.values())
                used = {name: (seconds - before[name]) / num_tokens for name, seconds in cpu_seconds().items()}
                print("CPU us a token:", *(f"{name} {each * 1e6:.1f}" for name, each in used.items()), file=sys.stderr)
        return self._known[known]

    def _in_process(self, side: Side) -> Results:
        [(name, stream)] = side.streams.items()
        data = stream.dataset
        words = [self._model, "--max-num-seqs", "64", *side.flags, "--batch-size", str(stream.arrival.max_concurrency)]
        words += ["--num-prompts", str(data.num_prompts), "--input-len", str(data.random_input_len)]
        words += ["--output-len", str(data.random_output_len)]
        return {name: {"output_throughput": throughput_in_process(words, self._directory / "report.json")}}

    async def _measure(self, url: str, streams: Mapping[str, Stream]) -> Results:
        found = await asyncio.gather(*(self._stream(url, name, each) for name, each in streams.items()))
        return dict(zip(streams, found, strict=True))

    async def _stream(self, url: str, name: str, stream: Stream) -> Result:
        endpoint = EndpointSpec(base_url=url, tokenizer=self._model)
        seed = self._seed + crc32(name.encode())  # streams have different prompts, and the same on each side
        run = RunSpec(seed=seed, num_warmups=1, max_lag_ms=MAX_LAG_MS, request_id_prefix=f"{name}-")
        scenario = Scenario(endpoint=endpoint, dataset=stream.dataset, arrival=stream.arrival, slo=stream.slo, run=run)
        plan = make_plan(scenario, seed)
        await asyncio.sleep(stream.start_s)
        result = make_result(await measure(scenario, plan, name, lambda _: None))
        facts = {key: result[key] for key in ("completed", "total_token_throughput", "median_ttft_ms", "median_itl_ms")}
        print(name, *(f"{key} {value:.5g}" for key, value in facts.items()), file=sys.stderr)
        if result["failed"] or not result["is_publishable"]:
            raise BenchmarkError(f"{name}: {result['error_examples'] or result['not_publishable_because']}")
        return result


def _keys(streams: Mapping[str, Stream]) -> str:
    lines = ["keys:"]
    for name, stream in streams.items():
        lines += [f"  - name: {name}", f"    key: {name}"]
        lines += [f"    ttft_slo_ms: {stream.slo.ttft_ms}"] if stream.slo.ttft_ms is not None else []
    return "\n".join(lines) + "\n"


def _catalogue() -> str:
    chip = INFERENTIA2
    rates = ", ".join(f"{name} = {rate / COMPUTE_SLOWNESS}" for name, rate in chip.tflops.items() if rate is not None)
    return f"""[chips.Inferentia2]
bandwidth_gb_s = {chip.bandwidth_gb_s / MEMORY_SLOWNESS}
tflops = {{ {rates} }}
source = "benchmarks/promises.py"
date = 2026-11-27
"""


def _figure(row: Row, bench: Bench, side: Side) -> float:
    figure = row.figure(bench.results(side))
    print(
        f"{row.name}: {figure:.4g} {row.unit} of {', '.join(side.streams)} with {' '.join(side.flags)}", file=sys.stderr
    )
    return figure


def main(arguments: list[str]) -> int:
    """Return 0 if all goals are reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.promises", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default=str(DEFAULT_MODEL))
    parser.add_argument("--pace", choices=("device", "host"), default="device")
    parser.add_argument("--only", default="", help="regular expression that the names of rows must match")
    parser.add_argument("--seed", type=int, default=0)
    asked, flags = parser.parse_known_args(arguments)  # the others are those of the server
    are_met = []
    with tempfile.TemporaryDirectory() as scratch:
        if asked.pace == "device":
            catalogue = Path(scratch, "slow.toml")
            catalogue.write_text(_catalogue())
            flags += ["--pace", "device", "--stack", "ideal", "--catalog", str(catalogue)]
        bench = Bench(asked.model, flags, Path(scratch), asked.seed)
        for row in (each for each in ROWS if re.search(asked.only, each.name)):
            if asked.pace == "device" and any(side.is_in_process for side in row.sides):
                continue
            try:
                first, *others = (_figure(row, bench, side) for side in row.sides)
            except BenchmarkError as error:
                print(error, file=sys.stderr)
                return 1
            ratio = first / row.best(others)
            are_met.append(row.is_met(ratio))
            beside, goal = " ".join(f"{each:.4g}" for each in others), f"{'<=' if row.is_most else '>='} {row.goal:.3g}"
            print(f"{row.name:54} {first:8.4g} for {beside} {row.unit}: {ratio:.3f}, {goal}", flush=True)
    return 0 if all(are_met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
