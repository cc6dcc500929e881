"""Random questions: asking for more never costs less.

More requests, tighter limits, longer answers, prompts and slots, dearer instances and less memory.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import pytest

from neuronserve.planner.model_names import resolve_decoder
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.parts import parts_in_question
from neuronserve.planner.plan.search import plan_model
from neuronserve.server.cost.stacks import STACK_NAMES
from neuronserve.server.device.instances import Instance
from neuronserve.server.errors import DeviceMemoryError
from tests.depth import representative

PARTS = (
    "inf2.xlarge",
    "inf2.8xlarge",
    "inf2.24xlarge",
    "inf2.48xlarge",
    "trn1.2xlarge",
    "trn1.32xlarge",
    "trn2.3xlarge",
)
# Quantiles of TPOT are left out: a longer answer averages more steps, so that a TPOT p95 is easier to keep.
LIMITED = ("ttft_s", "ttft_p95_s", "ttft_p99_s", "tpot_s")


def question(random: Random) -> PlanOptions:
    limits = {name: 2 ** random.uniform(-3, 4) for name in random.sample(LIMITED[:3], random.randint(0, 1))}
    if random.random() < 0.7:
        limits["tpot_s"] = 2 ** random.uniform(-7, -3)
    return PlanOptions(
        random.choice(("llama-8b", "qwen-7b", "llama-70b", "llama-1b")),
        int(2 ** random.uniform(4, 11)),
        int(2 ** random.uniform(1, 10)),
        2 ** random.uniform(-3, 7),
        devices=tuple(random.sample(PARTS, random.randint(1, 3))),
        stack=random.choice((None, *STACK_NAMES)),
        confidence=random.choice((0.5, 0.5, 0.8, 0.9)),
        dtypes=("bfloat16", "fp8"),
        max_batch=64,
        **limits,
    )


def cost(options: PlanOptions, parts: tuple[Instance, ...]) -> float:
    """Return dollars an hour of the recommendation; inf if none holds the limits or none fits."""
    try:
        best = plan_model(resolve_decoder(options.model), options, parts).best
    except DeviceMemoryError:
        return inf
    price = None if best is None else best.at_rate["on_demand"]
    return inf if price is None else price.hourly_usd


def harder(options: PlanOptions, times: float) -> dict[str, PlanOptions]:
    """Return questions that ask for `times` as much in one way."""
    found = {
        "rate": replace(options, request_rate=options.request_rate * times),
        "answer": replace(options, output_tokens=int(options.output_tokens * times) + 1),
        "doubled answer": replace(options, output_tokens=2 * options.output_tokens),
        "prompt": replace(options, input_tokens=int(options.input_tokens * times) + 1),
        "memory": replace(options, device_memory_utilization=options.device_memory_utilization / times),
        "confidence": replace(options, confidence=min(0.95, options.confidence * 1.2)),
    }
    limits = (name for name in LIMITED if getattr(options, name) is not None)
    return found | {name: replace(options, **{name: getattr(options, name) / times}) for name in limits}


def dearer(part: Instance, times: float) -> Instance:
    price = part.prices.on_demand
    return (
        part
        if price is None
        else replace(part, prices=replace(part.prices, on_demand=replace(price, usd=price.usd * times)))
    )


@pytest.mark.parametrize("seed", representative(range(200), 1, 4))
def test_asking_for_more_never_costs_less(seed: int) -> None:
    random = Random(seed)
    asked, times = question(random), 2 ** random.uniform(0.05, 1.5)
    parts = parts_in_question(asked)
    least = cost(asked, parts) * (1 - 1e-9)
    for name, options in harder(asked, times).items():
        assert cost(options, parts) >= least, (name, times, asked)
    assert cost(asked, tuple(dearer(part, times) for part in parts)) >= least, ("price", times, asked)
    slots = replace(asked, max_model_len=asked.total_tokens)
    longer = replace(asked, max_model_len=min(8192, int(asked.total_tokens * times) + 1))
    assert cost(longer, parts) >= cost(slots, parts) * (1 - 1e-9), ("slots", times, asked)
