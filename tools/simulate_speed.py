"""CPU time of a simulated request under each stack: `python -m tools.simulate_speed [--requests N] [--replicas N]`.

Simulates Llama-3-8B's shape on inf2.xlarge instances at a share of their capacity, which is measured first by
overloading one of them. Prints CPU seconds of this process, which exclude other work of the host, though a busy host
still slows them, and the time of a million such requests.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace

from neuronserve.planner.simulate.options import SimulationOptions
from neuronserve.planner.simulate.simulator import run_simulation
from neuronserve.server.config.formats import StackName
from neuronserve.server.cost.stacks import STACK_NAMES
from neuronserve.server.models.public import NAMED
from neuronserve.workload.arrivals import Arrivals
from neuronserve.workload.lengths import LengthRange
from neuronserve.workload.synthetic import SyntheticWorkload

MILLION = 1_000_000
LIMIT_MINUTES = 10.0  # of CPU time, for a million requests
LOAD = SyntheticWorkload(1_000, Arrivals(float("inf")), LengthRange(128, 1024), LengthRange(64, 512), seed=1)


def deployment(stack: StackName) -> SimulationOptions:
    """Return one replica with all of LOAD at once."""
    return SimulationOptions(
        NAMED["llama-8b"], "inf2.xlarge", LOAD.generate(), 2, max_model_len=2048, max_num_seqs=16, stack=stack
    )


def loaded(stack: StackName, load: float, replicas: int, requests: int) -> SimulationOptions:
    """Return the replicas with `load` times the requests a second that all their slots can serve."""
    one = deployment(stack)
    saturated = run_simulation(one)
    rate = load * replicas * saturated.completed / saturated.duration_s
    workload = replace(LOAD, num_requests=requests, arrivals=Arrivals(rate)).generate()
    return replace(one, workload=workload, replicas=replicas)


def main(arguments: list[str]) -> int:
    """Return 0 if a million requests take at most LIMIT_MINUTES under every selected stack."""
    parser = argparse.ArgumentParser(prog="python -m tools.simulate_speed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--load", type=float, default=0.8, help="share of saturation")
    parser.add_argument("--stack", choices=STACK_NAMES, nargs="+", default=STACK_NAMES)
    asked = parser.parse_args(arguments)
    slowest = 0.0
    for stack in asked.stack:
        options = loaded(stack, asked.load, asked.replicas, asked.requests)
        begin = time.process_time()
        report = run_simulation(options)
        cpu_s = time.process_time() - begin
        minutes = cpu_s / asked.requests * MILLION / 60
        slowest = max(slowest, minutes)
        steps = sum(engine.num_steps for engine in report.engines) / asked.requests
        print(
            f"{stack:12} {options.workload.rate:8.1f} requests/s {steps:7.1f} steps a request {cpu_s:7.1f} CPU s, "
            f"{cpu_s / asked.requests * 1e3:.3f} ms a request, a million in {minutes:.1f} min"
        )
    print(f"host: {os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f} over the last minute")
    return 0 if slowest <= LIMIT_MINUTES else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
