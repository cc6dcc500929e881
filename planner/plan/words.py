"""Texts of a plan: why a row misses limits, why no row fits, and notes. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Iterator

from ...server.device.instances import Instance
from ...server.errors import DeviceError, DeviceMemoryError
from ...server.models.spec import ModelSpec
from ...server.models.tensors import num_params
from .demand import Demand
from .options import PlanOptions
from .queueing import MAX_LOAD
from .report import Candidate, Excluded
from .times import MeanTimes


def misses(alone: MeanTimes, loaded: MeanTimes, options: PlanOptions, share: float = 0.5) -> Iterator[str]:
    """Yield limits that even a single request misses; if only waits are the cause, those missed under load.

    `share`: the quantile of step times at which they are missed.
    """
    if alone.within(options.limits) and loaded.within(options.limits):
        yield "the limits leave no room for any wait"
    slow = f", at P{share * 100:g} of the step times" * (share > 0.5)
    for limit in options.limits:
        least, usual = limit.of(alone), limit.of(loaded)
        when = "without any load" if least > limit.seconds else "under load"
        if max(least, usual) > limit.seconds:
            value = least if least > limit.seconds else usual
            yield f"{limit.name} is {value * 1e3:.1f} ms {when}: the limit is {limit.seconds * 1e3:.1f} ms{slow}"


def over_budget(hourly_usd: float | None, options: PlanOptions) -> Iterator[str]:
    most = options.usd_per_hour
    if most is None:
        return
    if hourly_usd is None:
        yield f"no {options.price_basis} price is known: the limit is ${most:.2f} an hour"
    elif hourly_usd > most:
        yield f"${hourly_usd:.2f} an hour: the limit is ${most:.2f}"


def allowed(part: Instance) -> str:
    return f"{part.name} has {part.num_cores} NeuronCores and allows {', '.join(map(str, part.allowed_tp))}"


def check_degrees(options: PlanOptions, parts: tuple[Instance, ...]) -> None:
    for tp in options.tensor_parallel_sizes:
        if not any(tp in part.allowed_tp for part in parts):
            degrees = "; ".join(allowed(part) for part in parts)
            raise DeviceError(f"tensor_parallel_size is {tp}: no considered instance allows it: {degrees}")


def nothing_fits(model: ModelSpec, options: PlanOptions, excluded: list[Excluded]) -> DeviceError:
    lacking = [entry for entry in excluded if entry.lacks_bytes is not None]
    if not lacking:
        return DeviceError("; ".join(dict.fromkeys(entry.reason for entry in excluded)))
    nearest = min(lacking, key=lambda entry: (entry.lacks_bytes, entry.device))
    alone = dict.fromkeys(entry.reason.partition(":")[0] for entry in excluded if entry.tp is None)  # not in a group
    return DeviceMemoryError(
        f"{options.model} with {num_params(model) / 1e9:.2f}B parameters fits on no considered instance. Nearest is "
        f"{nearest.device} with tensor_parallel_size {nearest.tp} in {nearest.dtype}: {nearest.reason}"
        f"{''.join(f'; {reason}' for reason in alone)}"
    )


def demand_notes(demand: Demand) -> Iterator[str]:
    if demand.left_out:
        yield (
            f"{demand.left_out} requests of the trace are longer than a slot can be: left out, and the rate is that of "
            "the others"
        )


def slo_notes(options: PlanOptions, candidates: list[Candidate]) -> Iterator[str]:
    if not candidates[0].meets_slo:
        yield "no configuration holds the limits; their rows say which they miss"
    if {limit.figure for limit in options.limits} != {"TTFT", "TPOT"}:
        yield (
            f"without limits on both times (--ttft-ms, --tpot-ms) the load is bounded by {MAX_LOAD:.0%} of saturation "
            "alone"
        )
