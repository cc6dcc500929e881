"""Result of a run as JSON: figures with the names of `vllm bench serve`, costs, and the benchmark record."""

from __future__ import annotations

import math
import os
import platform
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from . import cost, metrics
from .bench import Measurement
from .records import RequestRecord

DEFINITIONS = {
    "ttft": "first chunk that carries output - sent",
    "tpot": "(e2el - ttft) / (output tokens - 1), one value a request of two tokens or more",
    "itl": "gaps between chunks that carry output, pooled over all requests",
    "e2el": "last token - sent",
    "intended_*": "the same from when the arrival process wanted the request sent (no coordinated omission)",
    "throughput": "of completed requests, by the duration from the start to the last end",
    "goodput": "completed requests that meet every limit, by the duration",
    "sent": "before a connection is made, if none is open",
}


def make_result(measurement: Measurement) -> dict[str, Any]:
    """Return the result of one run, without its request records."""
    scenario, outcome = measurement.scenario, measurement.outcome
    records, duration_s = outcome.records, outcome.duration_s
    accounts = {
        "measured": cost.measured(records, duration_s, scenario.price, scenario.slo, measurement.rate),
        "modelled": cost.modelled(records, duration_s, scenario.price, scenario.slo, measurement.rate),
    }
    complaint = outcome.lag.complaint(scenario.run.max_lag_ms)
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "label": scenario.run.label,
        "scenario": scenario.name,
        "backend": scenario.endpoint.backend,
        "model_id": measurement.endpoint.model,
        "num_prompts": measurement.plan.num_requests,
        "request_rate": _finite(scenario.arrival.request_rate),
        "burstiness": _finite(scenario.arrival.burstiness),
        "max_concurrency": scenario.arrival.max_concurrency,
        **metrics.summarize(records, duration_s, scenario.slo),
        "errors_by_kind": metrics.failures(records),
        "error_examples": _examples(records),
        **_headline(accounts),
        "cost": accounts,
        "slo": asdict(scenario.slo),
        "is_interrupted": outcome.is_interrupted,
        "is_publishable": complaint is None,
        "not_publishable_because": complaint,
        "generator": outcome.lag.as_json(),
        "definitions": DEFINITIONS,
        "benchmark_record": benchmark_record(measurement),
    }


def benchmark_record(measurement: Measurement) -> dict[str, Any]:
    """Return facts by which a run can be repeated or compared. Unknown facts are "not stated", never guessed."""
    scenario, endpoint = measurement.scenario, measurement.endpoint
    rate = None if isinstance(measurement.rate, str) else measurement.rate
    done = [record for record in measurement.outcome.records if record.is_ok]
    stated = {key: "not stated" for key in ("precision", "topology", "max_num_seqs", "prefix_cache", "server_host")}
    prompt_tokens = sum(record.prompt_tokens for record in done)
    return {
        "tool": f"neuronserve loadtests {tool_version()}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "endpoint": scenario.endpoint.base_url + endpoint.path,
        "model": endpoint.model,
        "server": endpoint.owned_by,
        "server_version": endpoint.server_version,
        "max_model_len": endpoint.max_model_len,
        "arrival_process": measurement.plan.arrival,
        "request_rate": _finite(scenario.arrival.request_rate),
        "burstiness": _finite(scenario.arrival.burstiness),
        "max_concurrency": scenario.arrival.max_concurrency,
        "dataset": scenario.dataset.dataset_name,
        "dataset_path": scenario.dataset.dataset_path,
        "length_scale": scenario.dataset.length_scale,
        "num_left_out_as_too_long": measurement.plan.dataset.num_left_out,
        "input_tokens": _spread([record.prompt_tokens for record in done]),
        "output_tokens": _spread([record.output_tokens for record in done]),
        "cached_input_fraction": sum(r.cached_tokens for r in done) / prompt_tokens if prompt_tokens else None,
        "token_counts_from": sorted({record.token_source or "unknown" for record in done}),
        "ignore_eos": scenario.run.ignore_eos,
        "temperature": scenario.run.temperature,
        "num_warmups": scenario.run.num_warmups,
        "seed": measurement.plan.seed,
        "percentiles": list(metrics.PERCENTILES),
        "slo": asdict(scenario.slo),
        "instance": rate.instance if rate else None,
        "price_basis": rate.basis if rate else None,
        "price_source": rate.source if rate else None,
        "utilization": scenario.price.utilization,
        "client_host": f"{platform.system()} {platform.machine()}, {num_cpus()} cores, {cpu_model()}",
        **stated,
        **scenario.run.metadata,
    }


def tool_version() -> str:
    try:
        return version("neuronserve")
    except PackageNotFoundError:
        return "(not installed)"


def num_cpus() -> int:
    """Return the CPUs that this process may use; all of the host's if the system does not say (macOS)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """Return the name of the host's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )


def _headline(accounts: dict[str, cost.Account]) -> dict[str, Any]:
    """Return the headline figures: what the instance costs in the run over its tokens, and the modelled ones beside."""
    names = [f"cost_per_million_{kind}_tokens_usd" for kind in ("input", "output", "total")]
    wall, device = accounts["measured"], accounts["modelled"]
    return {
        "cost_basis": wall.get("basis"),
        **{name: wall.get(name) for name in names},
        **{f"modelled_{name}": device.get(name) for name in names},
    }


def _spread(values: list[int]) -> dict[str, float] | None:
    if not values:
        return None
    low, middle, high = np.percentile(values, [1, 50, 99])
    return {"mean": float(np.mean(values)), "p1": float(low), "p50": float(middle), "p99": float(high)}


def _examples(records: list[RequestRecord]) -> dict[str, str]:
    """Return one message of each kind of failure."""
    return {r.failure: r.error or "" for r in reversed(records) if r.failure is not None}


def _finite(value: float) -> float | str:
    return value if value < math.inf else "inf"
