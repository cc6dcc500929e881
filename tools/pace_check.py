"""Compare a paced server with the model that paces it: `python -m tools.pace_check [flags of serve]`.

Starts `neuronserve serve --pace device` with the default model and the given flags, loads it with a few clients, and
prints measured TTFT and TPOT beside those of `neuronserve simulate` for the same deployment and workload. The figures
are valid on an idle host only: the share of late steps is printed too.

Several clients count for the verdict only with `--batching neuron` (that of the vLLM stacks). In continuous batching,
prompts that are sent at once share a step in the simulator, whereas the server has started the first one before the
second arrives.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from typing import Any

import httpx
import numpy as np

from neuronserve.loadtests.bench import Measurement, measure
from neuronserve.loadtests.local_server import neuronserve_command, running
from neuronserve.loadtests.plan import make_plan
from neuronserve.loadtests.scenario import load_scenario
from neuronserve.loadtests.specs import Scenario
from neuronserve.planner.model_names import resolve_shape
from neuronserve.planner.simulate.options import SimulationOptions
from neuronserve.planner.simulate.report import SimulationReport
from neuronserve.planner.simulate.simulator import run_simulation
from neuronserve.server.settings.engine import EngineSettings
from neuronserve.server.settings.model import DEFAULT_MODEL
from neuronserve.workload.arrivals import Arrivals
from neuronserve.workload.lengths import LengthRange
from neuronserve.workload.synthetic import SyntheticWorkload

INPUT_LEN, OUTPUT_LEN = 100, 200
CLIENTS = (1, 4)
REQUESTS_PER_CLIENT = 15
LIMIT = 0.03  # of the median TPOT


def simulated(inventory: dict[str, Any], clients: int) -> SimulationReport:
    """Simulate the same deployment of the default model in virtual time."""
    workload = SyntheticWorkload(
        clients * REQUESTS_PER_CLIENT,
        Arrivals(float("inf")),
        LengthRange(INPUT_LEN, INPUT_LEN),
        LengthRange(OUTPUT_LEN, OUTPUT_LEN),
    )
    compiled = inventory["compiled"]
    options = SimulationOptions(
        model=resolve_shape(str(DEFAULT_MODEL)),
        instance=inventory["device"]["instance"],
        workload=workload.generate(),
        tensor_parallel_size=inventory["device"]["tensor_parallel_size"],
        max_model_len=compiled["max_model_len"],
        max_num_seqs=compiled["max_num_seqs"],
        max_num_batched_tokens=int(EngineSettings.model_fields["max_num_batched_tokens"].default),
        prefill_buckets=tuple(compiled["context_encoding_buckets"]),
        decode_buckets=tuple(compiled["token_generation_buckets"]),
        stack=compiled["stack"],
        max_concurrency=clients,
    )
    return run_simulation(options)


def paced_scenario(url: str, arrival: dict[str, Any], num_prompts: int, seed: int) -> Scenario:
    """Return a scenario with requests of the same lengths over HTTP."""
    return load_scenario(
        None,
        {
            "endpoint": {"base_url": url},
            "arrival": arrival,
            "dataset": {
                "num_prompts": num_prompts,
                "random_input_len": INPUT_LEN,
                "random_output_len": OUTPUT_LEN,
            },
            "run": {"num_warmups": 2, "seed": seed},
        },
    )


def load(scenario: Scenario) -> Measurement:
    """Send a scenario's requests."""
    return asyncio.run(measure(scenario, make_plan(scenario, scenario.run.seed), None, lambda _: None))


def compare(url: str, clients: int) -> bool:
    """Print a line for each figure; returns whether the median TPOT is within the limit, if it applies."""
    inventory = httpx.get(f"{url}/inventory").raise_for_status().json()
    model = simulated(inventory, clients)
    scenario = paced_scenario(url, {"max_concurrency": clients}, clients * REQUESTS_PER_CLIENT, seed=clients)
    records = [record for record in load(scenario).outcome.records if record.is_ok]
    tpot_ms = statistics.median(record.tpot_s * 1e3 for record in records if record.tpot_s is not None)
    ttft_ms = statistics.median(record.ttft_s * 1e3 for record in records if record.ttft_s is not None)
    error = tpot_ms / float(np.median(model.tpot_ms)) - 1
    print(f"{clients} client(s), {len(records)} requests of {INPUT_LEN} + {OUTPUT_LEN} tokens")
    print(f"  TPOT p50  measured {tpot_ms:8.3f} ms  model {np.median(model.tpot_ms):8.3f} ms  {error:+.2%}")
    print(f"  TTFT p50  measured {ttft_ms:8.3f} ms  model {np.median(model.ttft_ms):8.3f} ms")
    is_comparable = clients == 1 or inventory["compiled"]["batching"] == "neuron"
    return abs(error) <= LIMIT or not is_comparable


def late_share(url: str) -> float:
    """Return the share of late steps among the server's steps so far."""
    counts = {"late": 0.0, "in_time": 0.0}
    for line in httpx.get(f"{url}/metrics").raise_for_status().text.splitlines():
        for state in counts:
            if line.startswith("neuronserve:pace_steps_total{") and f'state="{state}"' in line:
                counts[state] += float(line.rpartition(" ")[2])
    return counts["late"] / max(1.0, sum(counts.values()))


def main(arguments: list[str]) -> int:
    """Return 0 if every median TPOT with a limit is within it."""
    with running(neuronserve_command(["--pace", "device", *arguments])) as url:
        is_kept = all([compare(url, clients) for clients in CLIENTS])
        print(f"{late_share(url):.1%} of the server's steps were late")
    print(f"TPOT p50 {'within' if is_kept else 'NOT within'} {LIMIT:.0%} of the model")
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
