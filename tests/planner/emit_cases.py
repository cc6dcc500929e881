"""Deployments with fixed figures, so that a new calibration does not change their files.

`python -m tests.planner.emit_cases` rewrites the golden folders.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from neuronserve.planner.emit.deployment import Deployment, Promise, deployment_of
from neuronserve.planner.emit.folder import README
from neuronserve.planner.emit.readme import readme
from neuronserve.planner.emit.targets import rendered
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.report import TokenPrice
from neuronserve.planner.plan.running import Running
from neuronserve.planner.plan.search import plan
from neuronserve.server.cost.stacks import STACKS
from neuronserve.server.device.catalog import instance
from neuronserve.server.device.prices import Price

GOLDEN = Path(__file__).parent / "emit_golden"
_GIB = 2**30

_PROMISE = Promise(
    request_rate=8.0,
    input_tokens=1000.0,
    output_tokens=200.0,
    ttft_s=0.25,
    tpot_s=0.02,
    ttft_limit_s=1.5,
    tpot_limit_s=0.025,
    output_tokens_s=1600.0,
    load=0.8,
    cost=TokenPrice(12.98127, 0.1, 1.5, 0.4),
    misses=(),
    extrapolated="",
    calibration="7",
)
_INF2 = Deployment(
    promise=_PROMISE,
    asked_model="meta-llama/Meta-Llama-3-8B",
    checkpoint="meta-llama/Meta-Llama-3-8B",
    checkpoint_bytes=16 * _GIB,
    part=instance("inf2.48xlarge"),
    tp=8,
    dp=3,
    instances=2,
    slots=16,
    weights="bfloat16",
    core_bytes=4 * _GIB,
    max_model_len=2048,
    prompt_buckets=(512, 1024),
    decode_buckets=(128, 256, 512, 1024, 2048),
    stack=STACKS["nxdi-vllm"],
    device_memory_utilization=0.9,
    price_basis="on_demand",
    price=instance("inf2.48xlarge").price("on_demand"),
    trace=None,
)
CASES = {
    "inf2": _INF2,
    # One server on a small instance, at a price of the user's own; mixed steps; limits are not held; a known failure.
    "inf2-spot": replace(
        _INF2,
        promise=replace(
            _PROMISE,
            ttft_limit_s=None,
            cost=TokenPrice(0.25, 0.01, 0.1, 0.03),
            misses=("TPOT is 20.0 ms: the limit is 10.0 ms",),
            running=Running("no", "A real accelerator is known not to run it: [NCC_INLA001].", ("more memory",)),
        ),
        part=instance("inf2.xlarge"),
        tp=2,
        dp=1,
        instances=1,
        weights="int8",
        prompt_buckets=(2048,),
        decode_buckets=(2048,),
        stack=STACKS["ideal"],
        price_basis="spot",
        price=Price(0.25, "invoice", "2026-09-01"),
    ),
    # Logical cores, dimensions without a checkpoint, no price, requests of a recording.
    "trn2": replace(
        _INF2,
        promise=replace(_PROMISE, cost=None, extrapolated="no measurement of Trainium2"),
        asked_model="llama-70b",
        checkpoint=None,
        checkpoint_bytes=131 * _GIB,
        part=instance("trn2.48xlarge"),
        tp=32,
        dp=2,
        weights="fp8",
        price=None,
        trace="hour.csv",
    ),
}


PLANS = {
    "8b, default stacks": PlanOptions("llama-8b", 1000, 200, 4.0, tpot_s=0.04),
    "70b, ideal": PlanOptions("llama-70b", 3000, 100, 0.5, price_basis="reserved", stack="ideal"),
}


def rows() -> Iterator[Deployment]:
    """The cases, and the best row of every device and type of the plans."""
    yield from CASES.values()
    for report in map(plan, PLANS.values()):
        first = {(row.device, row.dtype): row for row in reversed(report.candidates)}
        yield from (deployment_of(report, candidate) for candidate in first.values())


def written(d: Deployment) -> dict[str, str]:
    """The folder's texts by file name."""
    files = rendered(d)
    return {**files.texts, README: readme(d, files)}


def main() -> None:
    """Write all golden folders."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for name, deployment in CASES.items():
        for path, text in written(deployment).items():
            (GOLDEN / name).mkdir(parents=True, exist_ok=True)
            (GOLDEN / name / path).write_text(text)


if __name__ == "__main__":
    main()
