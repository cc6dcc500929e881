"""Reports of load tests of an endpoint with known coefficients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from neuronserve.planner.model_names import resolve_shape
from neuronserve.planner.observe.deployment import Deployment
from neuronserve.planner.observe.fit import decode_terms
from neuronserve.server.cost.calibration import Calibration, shipped_calibration
from neuronserve.server.cost.stacks import STACKS, HostWork
from neuronserve.server.device.catalog import instance

SLOTS = 32
DEPLOYMENT = Deployment(
    model_name="llama-8b",
    model=resolve_shape("llama-8b"),
    instance=instance("inf2.48xlarge"),
    stack=STACKS["vllm-neuron"],  # prompts in buckets: several lengths tell the prefill scale from `request_s`
    max_model_len=4096,
    max_num_seqs=SLOTS,
    tensor_parallel_size=8,
    data_parallel_size=2,
)
HOST = HostWork(request_s=0.02, slot_s=5e-4)


def truth(deployment: Deployment, decode: float, prefill: float, host: HostWork = HOST) -> Calibration:
    """The shipped calibration with other scales, and another host of the deployment's stack."""
    base = shipped_calibration()
    shared = decode_terms(deployment.cost(base))
    scaled = {name: price * (decode if name in shared else prefill) for name, price in base.coefficients.items()}
    hosts = {**base.hosts, deployment.stack.host: host}
    return replace(base, coefficients=scaled, hosts=hosts, data_sha256="0" * 64)


def run(num_open: int, input_len: int, output_len: int, ttft_s: float, itl_s: float, **changes: Any) -> dict[str, Any]:
    """Return the used fields of a closed-loop run of equal requests, five for each open one."""
    completed = 5 * num_open
    spreads = {
        name: {"mean": n, "p1": n, "p50": n, "p99": n}
        for name, n in (("input_tokens", float(input_len)), ("output_tokens", float(output_len)))
    }
    return {
        "completed": completed,
        "failed": 0,
        "request_rate": "inf",
        "max_concurrency": num_open,
        "mean_concurrency": num_open * 0.9,
        "total_cached_input_tokens": 0,
        "total_output_tokens": completed * output_len,
        "median_ttft_ms": ttft_s * 1e3,
        "median_itl_ms": itl_s * 1e3,
        "median_tpot_ms": itl_s * 1e3,
        "benchmark_record": spreads,
        **changes,
    }


def measured(deployment: Deployment, calibration: Calibration, loads: Iterator[tuple[int, int]]) -> list[Any]:
    """Return runs of `loads` (open requests, prompt tokens) on an endpoint with exactly the times of `calibration`."""
    cost, host = deployment.cost(calibration), calibration.host(deployment.stack.host)
    runs = []
    for num_open, input_len in loads:
        busy = max(1, num_open // deployment.data_parallel_size)
        bucket, positions = deployment.prompt_bucket(input_len), deployment.step_bucket(input_len + 16)
        ttft_s = host.request_s + cost.prefill(bucket, bucket).elapsed_s
        itl_s = cost.decode(deployment.step_slots(busy), positions).elapsed_s + host.step_s(busy, SLOTS)
        runs.append((f"{num_open} x {input_len}", run(num_open, input_len, 16, ttft_s, itl_s)))
    return runs
