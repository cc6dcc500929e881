"""Compare plan, simulation and a paced server: `python -m tools.agreement_check [flags of serve]`.

Plans the default model for requests of 100 + 200 tokens with random arrivals at a rate, simulates the planned
deployment with the same arrivals, and sends them in a load test to `neuronserve serve --pace device`. Prints mean TTFT
and TPOT, tokens a second and dollars per million tokens of the three with their differences. Exits with 1 if any two
differ by more than 10 %. The paced figures are valid on an idle host only: the share of late steps is printed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from itertools import combinations

import httpx
import numpy as np

from neuronserve.loadtests.bench import Measurement
from neuronserve.loadtests.local_server import neuronserve_command, running
from neuronserve.loadtests.specs import Scenario
from neuronserve.planner.plan.check import Agreement, RequestTimes, ServiceFigures, compared, simulation_of
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.report import Candidate, PlanReport
from neuronserve.planner.plan.search import plan
from neuronserve.planner.simulate.simulator import run_simulation
from neuronserve.server.config.formats import StackName
from neuronserve.server.cost.stacks import STACK_NAMES
from neuronserve.server.settings.model import DEFAULT_MODEL
from neuronserve.workload.arrivals import Arrivals
from neuronserve.workload.lengths import LengthRange
from neuronserve.workload.synthetic import SyntheticWorkload
from neuronserve.workload.workload import Workload
from tools.pace_check import INPUT_LEN, OUTPUT_LEN, late_share, load, paced_scenario

LIMIT = 0.10
INSTANCE, TP, MAX_MODEL_LEN = "inf2.xlarge", 2, 2048  # the server's own defaults, except for the batch
SCALES = {"tpot_s": (1e3, "TPOT, mean ms"), "ttft_s": (1e3, "TTFT, mean ms")}
NAMES = {"output_tokens_s": (1.0, "output tokens/s"), "usd_per_million_tokens": (1.0, "$/1M tokens"), **SCALES}


@dataclass(frozen=True, slots=True)
class CheckedWorkload:
    """The workload of all three. There are enough `slots` that requests rarely wait for one."""

    request_rate: float = 6.0
    num_prompts: int = 360
    slots: int = 64
    stack: StackName = "ideal"
    seed: int = 0

    @property
    def scenario(self) -> Scenario:
        """Return the workload as a scenario of a load test, without the server."""
        return paced_scenario("", {"request_rate": self.request_rate}, self.num_prompts, self.seed)

    @property
    def workload(self) -> Workload:
        """Return the workload as a simulation takes it."""
        return SyntheticWorkload(
            self.num_prompts,
            Arrivals(self.request_rate),
            LengthRange(INPUT_LEN, INPUT_LEN),
            LengthRange(OUTPUT_LEN, OUTPUT_LEN),
            seed=self.seed,
        ).generate()


def planned(checked: CheckedWorkload, workload: Workload) -> tuple[PlanReport, Candidate]:
    """Return the plan for the real rate of the requests, and its row for the given slots."""
    options = PlanOptions(
        str(DEFAULT_MODEL),
        INPUT_LEN,
        OUTPUT_LEN,
        workload.rate,
        devices=(INSTANCE,),
        tensor_parallel_sizes=(TP,),
        dtypes=("bfloat16",),
        max_model_len=MAX_MODEL_LEN,
        stack=checked.stack,
        max_batch=checked.slots,
    )
    report = plan(options)
    (found,) = (candidate for candidate in report.candidates if candidate.batch == checked.slots)
    return report, found


def simulated(report: PlanReport, candidate: Candidate, workload: Workload) -> ServiceFigures:
    """Return figures of the planned deployment under these arrivals."""
    options = replace(simulation_of(report, candidate), workload=workload)
    return ServiceFigures.steady(RequestTimes.of(run_simulation(options).records), report.demand, options.hourly_usd)


def measured(measurement: Measurement, report: PlanReport, hourly_usd: float | None) -> ServiceFigures:
    """Return figures of a paced server's clients, at the price that the server reports."""
    records = sorted((record for record in measurement.outcome.records if record.is_ok), key=lambda one: one.sent_s)
    sent = np.array([record.sent_s for record in records])
    first = sent + [record.ttft_s or 0.0 for record in records]
    served = RequestTimes(
        sent, first, np.array([record.end_s for record in records]), np.array([one.output_tokens for one in records])
    )
    return ServiceFigures.steady(served, report.demand, hourly_usd)


def serve_flags(candidate: Candidate, checked: CheckedWorkload) -> list[str]:
    """Return the planned deployment as flags of `neuronserve serve`."""
    flags = {
        "pace": "device",
        "device": candidate.device,
        "tensor-parallel-size": candidate.tp,
        "max-num-seqs": candidate.batch,
        "max-model-len": MAX_MODEL_LEN,
        "stack": checked.stack,
    }
    return [text for name, value in flags.items() for text in (f"--{name}", str(value))]


def verdict(sides: dict[str, ServiceFigures]) -> tuple[list[str], bool]:
    """Return a line for each figure, with all sides and each difference, and whether none exceeds the limit."""
    pairs = {(one, other): compared(sides[one], sides[other]) for one, other in combinations(sides, 2)}
    lines = [f"{'':18}" + "".join(f"{name:>11}" for name in sides) + "".join(f"{f'{a}/{b}':>18}" for a, b in pairs)]
    by_figure = zip(*pairs.values(), strict=True)
    is_kept = True
    for found in by_figure:
        scale, title = NAMES[found[0].name]
        values = "".join(f"{getattr(side, found[0].name) * scale:11.3f}" for side in sides.values())
        lines.append(f"{title:18}{values}" + "".join(f"{one.error:>+18.2%}" for one in found))
        is_kept &= all(_is_within(one) for one in found)
    return lines, is_kept


def _is_within(one: Agreement) -> bool:
    return abs(one.error) <= LIMIT


def main(arguments: list[str]) -> int:
    """Return 0 if all three agree."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.agreement_check", description=(__doc__ or "").splitlines()[0]
    )
    for name, of in (("request_rate", float), ("num_prompts", int), ("slots", int), ("seed", int)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=of, default=getattr(CheckedWorkload(), name))
    parser.add_argument("--stack", choices=STACK_NAMES, default="ideal")
    args, of_serve = parser.parse_known_args(arguments)
    checked = CheckedWorkload(**vars(args))
    workload = checked.workload
    report, candidate = planned(checked, workload)
    sides = {"plan": ServiceFigures.planned(report, candidate), "simulate": simulated(report, candidate, workload)}
    with running(neuronserve_command([*serve_flags(candidate, checked), *of_serve])) as url:
        price = httpx.get(f"{url}/inventory").raise_for_status().json()["price"]
        run = load(paced_scenario(url, {"request_rate": checked.request_rate}, checked.num_prompts, checked.seed))
        sides["paced"] = measured(run, report, price["usd_per_hour"] if price else None)
        late = late_share(url)
    lines, is_kept = verdict(sides)
    print(f"{len(workload)} requests of {INPUT_LEN} + {OUTPUT_LEN} tokens, {workload.rate:.2f} a second, ", end="")
    print(f"stack {checked.stack}, {candidate.batch} slots on {candidate.device}", *lines, sep="\n")
    print(f"{late:.1%} of the server's steps were late; all figures {'' if is_kept else 'NOT '}within {LIMIT:.0%}")
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
