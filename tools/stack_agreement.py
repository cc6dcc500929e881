"""Plan against simulation under each stack: `python -m tools.stack_agreement [--load 0.6] [--stack tgi ...]`.

Plans four deployments at a share of their capacity and simulates them with the same arrivals. Prints the plan's error
of each figure relative to the simulation, and the mean of the absolute errors of each stack.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace

import numpy as np

from neuronserve.planner.plan.check import agreement, simulate_candidate
from neuronserve.planner.plan.options import LIMITS, PlanOptions
from neuronserve.planner.plan.report import Candidate, PlanReport
from neuronserve.planner.plan.search import plan
from neuronserve.planner.simulate.report import SimulationReport
from neuronserve.server.config.formats import StackName
from neuronserve.server.cost.stacks import STACK_NAMES


@dataclass(frozen=True, slots=True)
class Shape:
    """A deployment of one instance, and its requests."""

    model: str
    input_tokens: int
    output_tokens: int
    instance: str
    tp: int
    slots: int
    max_model_len: int | None = None  # None: the bucket of a request

    def planned(self, stack: StackName, load: float) -> tuple[PlanReport, Candidate]:
        """Return the plan at `load` of saturation, and its row for the slots."""
        asked = PlanOptions(
            self.model,
            self.input_tokens,
            self.output_tokens,
            devices=(self.instance,),
            tensor_parallel_sizes=(self.tp,),
            dtypes=("bfloat16",),
            max_batch=self.slots,
            stack=stack,
            max_model_len=self.max_model_len,
        )
        saturated = self._row(plan(asked)).saturated_output_tokens_s
        report = plan(replace(asked, request_rate=load * saturated / self.output_tokens))
        return report, self._row(report)

    def _row(self, report: PlanReport) -> Candidate:
        (row,) = (candidate for candidate in report.candidates if candidate.batch == self.slots)
        return row


SHAPES = (
    Shape("llama-8b", 700, 200, "inf2.48xlarge", 8, 16),
    Shape("llama-8b", 200, 400, "inf2.xlarge", 2, 8),
    Shape("llama-70b", 1500, 237, "inf2.48xlarge", 24, 16),
    Shape("llama-8b", 200, 900, "inf2.48xlarge", 8, 16, max_model_len=4096),
)


def errors(shape: Shape, stack: StackName, load: float) -> dict[str, float]:
    """Return the plan's errors relative to the simulation: means, and the quantiles that can be limited."""
    report, row = shape.planned(stack, load)
    simulated = simulate_candidate(report, row)
    means = {one.name: one.error for one in agreement(report, row, simulated) if one.name != "usd_per_million_tokens"}
    return means | {name: row.quantiles_s[name] / seconds - 1 for name, seconds in quantiles_s(simulated).items()}


def quantiles_s(simulated: SimulationReport) -> dict[str, float]:
    """Return the quantiles that a plan can limit, without the first fifth of the requests (the fill phase)."""
    times = {"TTFT": simulated.ttft_ms, "TPOT": simulated.tpot_ms}
    return {
        limit.name: float(np.percentile(times[limit.figure][len(times[limit.figure]) // 5 :], limit.share * 100)) / 1e3
        for limit in LIMITS.values()
        if limit.share is not None
    }


def main(arguments: list[str]) -> int:
    """Print the errors; always returns 0, as no limit is set."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.stack_agreement", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--load", type=float, default=0.6, help="share of saturation")
    parser.add_argument("--stack", choices=STACK_NAMES, nargs="+", default=STACK_NAMES)
    asked = parser.parse_args(arguments)
    for stack in asked.stack:
        found = [errors(shape, stack, asked.load) for shape in SHAPES]
        for shape, of_shape in zip(SHAPES, found, strict=True):
            print(_line(f"{stack}, {shape.model} {shape.input_tokens} + {shape.output_tokens}", of_shape))
        means = {name: float(np.mean([abs(one[name]) for one in found])) for name in found[0]}
        print(_line(f"{stack}, mean of absolute errors", means))
    return 0


def _line(title: str, figures: dict[str, float]) -> str:
    return f"{title:40}" + "".join(f"  {name} {error:+.1%}" for name, error in figures.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
