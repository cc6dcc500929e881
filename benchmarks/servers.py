"""Contenders behind HTTP: started on a port of this host, loaded by the project's own generator."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.process import Hosted, Process, free_port, wait_for_url
from benchmarks.records import INPUT_LEN, OUTPUT_LEN, BenchmarkError, Case, Figures
from neuronserve.loadtests.bench import measure
from neuronserve.loadtests.errors import LoadTestError
from neuronserve.loadtests.plan import make_plan
from neuronserve.loadtests.result import make_result
from neuronserve.loadtests.session import run_loop
from neuronserve.loadtests.specs import ArrivalSpec, DatasetSpec, EndpointSpec, RunSpec, Scenario

# Generator and server share a few cores, which the server fills: lateness of the generator affects both sides alike,
# and in a closed loop it shifts no arrivals. Beyond this limit a median TTFT would be visibly wrong.
MAX_LAG_MS = 100.0
_ADDRESS = ("--host", "127.0.0.1", "--port", "{port}")
_LIMITS = (
    "--max-model-len",
    "2048",
    "--max-num-seqs",
    "64",
    "--no-enable-prefix-caching",
)  # flags with the same name in both


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """Command line of a server. `port` stands in place of the port."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # added to every request

    def with_port(self, port: int) -> list[str]:
        return [argument.replace("{port}", str(port)) for argument in self.arguments]


class ServerContender(Hosted):
    """A server, started once for the whole comparison.

    It is not stopped between turns: an idle server sleeps, and some servers close their connections when they wake and
    find how much time has passed.
    """

    def __init__(self, name: str, command: ServerCommand, tokenizer: Path) -> None:
        """`tokenizer` is the checkpoint's directory: prompts consist of its words."""
        super().__init__(name)
        self._command, self._tokenizer = command, tokenizer
        self._url = ""

    def start(self) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        self._process = Process(self._command.with_port(port), self._command.environment)
        wait_for_url(self._process, f"{self._url}/health")

    def pause(self) -> None:
        """Do nothing: an idle server takes no CPU time."""

    def measure(self, case: Case, seed: int) -> Figures:
        try:
            result = run_loop(_run(self._scenario(case, seed)))
        except LoadTestError as error:
            raise BenchmarkError(f"{self.name}: {error}") from error
        record = result["benchmark_record"]
        self._about = {"version": str(record["server_version"]), "model": str(record["model"])}
        return figures(self.name, result)

    def _scenario(self, case: Case, seed: int) -> Scenario:
        body = dict(self._command.extra_body)
        return Scenario(
            name=case.name,
            endpoint=EndpointSpec(base_url=self._url, tokenizer=str(self._tokenizer), extra_body=body),
            dataset=DatasetSpec(
                num_prompts=case.num_requests, random_input_len=INPUT_LEN, random_output_len=OUTPUT_LEN
            ),
            arrival=ArrivalSpec(max_concurrency=case.size),
            run=RunSpec(seed=seed, num_warmups=1, max_lag_ms=MAX_LAG_MS),
        )


async def _run(scenario: Scenario) -> dict[str, Any]:
    done = await measure(scenario, make_plan(scenario, scenario.run.seed), None, lambda _: None)
    return make_result(done)


def figures(name: str, result: Mapping[str, Any]) -> Figures:
    """Return throughput and medians; raises BenchmarkError if a request failed or the generator was late."""
    if result["failed"]:
        raise BenchmarkError(f"{name}: {result['failed']} requests failed: {result['error_examples']}")
    if not result["is_publishable"]:
        raise BenchmarkError(f"{name}: {result['not_publishable_because']}")
    names = ("output_throughput", "median_ttft_ms", "median_tpot_ms")
    return {key: float(result[key]) for key in names if result[key] is not None}


def neuronserve(checkpoint: Path, quantization: str, threads: int) -> ServerCommand:
    """Return the command of this server."""
    arguments = [sys.executable, "-m", "neuronserve", "serve", str(checkpoint), *_ADDRESS]
    arguments += ["--quantization", quantization, "--cpu-threads", str(threads), "--disable-access-log", *_LIMITS]
    return ServerCommand(tuple(arguments))


def vllm(python: Path, model: Path, threads: int) -> ServerCommand:
    """Return the command of vLLM for CPUs."""
    arguments = [str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model), *_ADDRESS]
    arguments += ["--dtype", "bfloat16", *_LIMITS]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}"}
    return ServerCommand(tuple(arguments), environment)


def llama_server(program: Path, model: Path, threads: int, slots: int) -> ServerCommand:
    """Return the command of llama.cpp's server, a slot for each connection; large batches above 16 are faster."""
    arguments = [str(program), "-m", str(model), "--parallel", str(slots), "-cb", "--no-webui", *_ADDRESS]
    arguments += ["-c", str(slots * (INPUT_LEN + OUTPUT_LEN + 64)), "-t", str(threads), "-tb", str(threads)]
    arguments += ["-ub", "2048"] if slots > 16 else []
    return ServerCommand(tuple(arguments), extra_body={"cache_prompt": False})
