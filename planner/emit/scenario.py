"""Load test that checks the promise: the plan's lengths, rate, limits and price (`loadtests/`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import ceil

from .deployment import Deployment, LeftOut

DURATION_S = 600  # MLPerf Inference, Server scenario: the shortest run
FEWEST_PROMPTS, MOST_PROMPTS = 200, 100_000

Section = Mapping[str, object]


def scenario(d: Deployment) -> str | LeftOut:
    """Return the scenario as TOML. The record of each run has the promise beside the measured figures."""
    if d.trace is not None:
        return LeftOut(f"the plan is for {d.trace}: send that file, with --dataset-name and --dataset-path")
    p = d.promise
    sections: dict[str, Section] = {
        "dataset": {
            "dataset_name": "random",
            "num_prompts": max(FEWEST_PROMPTS, min(MOST_PROMPTS, ceil(p.request_rate * DURATION_S))),
            "random_input_len": round(p.input_tokens),
            "random_output_len": round(p.output_tokens),
        },
        "arrival": {"request_rate": float(p.request_rate)},
        "slo": _limits(d),
        "price": _price(d),
        "run.metadata": {
            "planned_mean_ttft_ms": f"{p.ttft_s * 1e3:.4g}",
            "planned_mean_tpot_ms": f"{p.tpot_s * 1e3:.4g}",
            "planned_output_throughput": f"{p.output_tokens_s:.4g}",
            "planned_deployment": f"{d.instances} x {d.part.name}, {d.dp} x TP{d.tp}, {d.slots} slots",
            "precision": d.weights,
        },
    }
    head = {"name": d.name, "description": f"the load that {d.asked_model} on {d.part.name} was planned for"}
    return "\n".join([_lines(head), *(f"[{name}]\n{_lines(values)}" for name, values in sections.items() if values)])


def _limits(d: Deployment) -> Section:
    limits = {"ttft_ms": d.promise.ttft_limit_s, "tpot_ms": d.promise.tpot_limit_s}
    return {name: seconds * 1e3 for name, seconds in limits.items() if seconds is not None}


def _price(d: Deployment) -> Section:
    if d.price is None or d.promise.cost is None:
        return {}
    label = f"{d.instances} x {d.part.name}, {d.price_basis}, {d.part.prices.region}, {d.price.date}"
    return {"price_per_hour": d.promise.cost.hourly_usd, "price_label": label}


def _lines(values: Section) -> str:
    """Return keys of a TOML table; JSON's texts, numbers and booleans are valid TOML."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
