"""The table of docs/guides/load-tests.md: the cheapest plan of each model on each instance, beside a simulation."""

from __future__ import annotations

from collections.abc import Iterator

from neuronserve.planner.plan.check import check_plan
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.search import plan
from neuronserve.server.errors import DeviceMemoryError

MODELS = ("llama-1b", "llama-8b", "llama-13b", "llama-70b")
DEVICES = ("inf2.xlarge", "inf2.48xlarge")
HEAD = (
    "| model | instance | TP x DP | weights | slots | instances | load | TTFT ms | TPOT ms | $/1M in | $/1M out "
    "| $/1M tokens planned | simulated |\n|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
)


def table() -> str:
    """Return a row for each model and instance. TTFT, TPOT and the last column are the simulation's."""
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in _rows())


def _rows() -> Iterator[tuple[str, ...]]:
    for model in MODELS:
        for device in DEVICES:
            options = PlanOptions(model, request_rate=20.0, ttft_s=2.0, tpot_s=0.1, devices=(device,))
            try:
                yield (model, device, *_cells(options))
            except DeviceMemoryError:
                yield (model, device, "does not fit", *[""] * 10)


def _cells(options: PlanOptions) -> tuple[str, ...]:
    report = plan(options)
    best = report.best
    if best is None:
        return ("misses a limit", *[""] * 10)
    simulated = {each.name: each.simulated for each in check_plan(report)}
    price = best.at_rate[options.price_basis]
    assert price is not None  # each of these instances has an on-demand price
    group = f"{best.instances_per_replica} together, " if best.instances_per_replica > 1 else ""
    return (
        f"{group}{best.tp} x {best.dp}",
        best.dtype,
        str(best.batch),
        str(best.instances),
        f"{best.load:.0%}",
        f"{1e3 * simulated['ttft_s']:.0f}",
        f"{1e3 * simulated['tpot_s']:.1f}",
        f"{price.input_usd:.3f}",
        f"{price.output_usd:.3f}",
        f"{price.total_usd:.4f}",
        f"{simulated['usd_per_million_tokens']:.4f}",
    )
