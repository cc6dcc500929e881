"""Checks, before loading, that a model fits on an instance, and finds the smallest instance that would hold it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..config.formats import Quantization, RequestedFormats, WeightFormats
from ..device.catalog import Instance, instances
from ..device.ledger import account_table, core_name
from ..errors import DeviceError, DeviceMemoryError
from ..host.memory import GIB
from ..models.spec import ModelSpec
from ..models.tensors import num_params
from .footprint import Footprint, ServingShape, encoder_lines
from .matrices import main_format
from .runtime_memory import Line

MICROSCALING: tuple[Quantization, ...] = ("mxfp8", "mxfp4")  # types that only newer chips compute in
MAX_ROWS = 8  # of the account in a refusal: Kubernetes keeps the last 2,048 bytes of a container's log


def budget_bytes(instance: Instance, utilization: float) -> int:
    """Return the bytes of one core's memory that may be used."""
    return int(instance.core_memory_bytes * utilization)


def missing_type(quantization: Quantization | None, instance: Instance) -> str:
    """Return why an instance cannot serve a microscaling format: its chip's data sheet lacks the type. Else empty."""
    if quantization in MICROSCALING and quantization not in instance.chip.dtypes:
        return f"{instance.chip.name} of {instance.name} does not have the type"
    return ""


def with_types_of(instance: Instance, requested: RequestedFormats) -> RequestedFormats:
    """Return `requested`. On a chip with microscaling formats, a checkpoint's codes in them may stay."""
    has_types = set(MICROSCALING) <= set(instance.chip.dtypes)
    return replace(requested, may_microscale=requested.may_microscale or has_types)


def require_type(quantization: Quantization | None, instance: Instance, is_allowed: bool) -> None:
    """Raise DeviceError for a type that the chip does not have, unless `is_allowed`."""
    if (reason := missing_type(quantization, instance)) and not is_allowed:
        raise DeviceError(
            f"quantization is {quantization}: {reason}; --allow-unsupported-types computes it on the host anyway"
        )


def require_fit(
    model: ModelSpec, instance: Instance, tp: int, shape: ServingShape, utilization: float, dp: int = 1
) -> Footprint:
    """Return the footprint of `model` on the `tp` cores of one of `dp` groups on `instance`.

    Raises DeviceError when the instance does not allow `tp` or has too few cores. Raises DeviceMemoryError, with the
    account and the smallest sufficient instance, when one sequence of `max_model_len` tokens does not fit.
    """
    instance.check_tp(tp)
    instance.check_groups(tp, dp)
    footprint = Footprint.of(model, tp, shape, instance.chip.lnc)
    if not footprint.fits(budget_bytes(instance, utilization)):
        account = _refusal(model, instance, tp, shape, utilization)
        raise DeviceMemoryError(f"{account}\n{_advice(model, instance, shape, utilization, dp)}")
    return footprint


def require_encoder_fit(
    model: ModelSpec, device: tuple[Instance, float], tp: int, formats: WeightFormats, texts: tuple[int, int]
) -> tuple[Line, ...]:
    """Return the entries of each of `tp` cores of `device`: an instance, and the usable share of its memory.

    Raises DeviceError when the instance does not allow `tp`, DeviceMemoryError when a pass of `texts` does not fit.
    """
    instance, utilization = device
    instance.check_tp(tp)
    lines, budget = encoder_lines(model, tp, formats, texts, instance.chip.lnc), budget_bytes(instance, utilization)
    needed = sum(line.num_bytes for line in lines)
    if needed > budget:
        raise DeviceMemoryError(
            f"NRT_RESOURCE (4): {model.architecture} does not fit on {instance.name} with tensor_parallel_size {tp}: "
            f"{texts[0]} text(s) of {texts[1]} tokens need {needed / GIB:.2f} GiB on each core, which has "
            f"{budget / GIB:.2f}"
        )
    return lines


def alternatives(
    model: ModelSpec, shape: ServingShape, utilization: float, dp: int = 1
) -> Iterator[tuple[Instance, int]]:
    """Yield (instance, TP) of the catalogue that hold the model `dp` times: cheapest first, then fewest cores."""
    for instance in sorted(instances(), key=lambda i: (i.on_demand_usd is None, i.on_demand_usd or 0.0)):
        for tp in instance.allowed_tp:
            fits = Footprint.of(model, tp, shape, instance.chip.lnc).fits(budget_bytes(instance, utilization))
            if fits and tp * dp <= instance.num_cores:
                yield instance, tp


def _refusal(model: ModelSpec, instance: Instance, tp: int, shape: ServingShape, utilization: float) -> str:
    footprint = Footprint.of(model, tp, shape, instance.chip.lnc)
    budget = budget_bytes(instance, utilization)
    needs = [footprint.of_core(core, footprint.min_blocks) for core in range(min(tp, MAX_ROWS))]
    over = sum(needs[0].values()) - budget
    per_chip = instance.chip.cores_per_chip
    cores = [(core_name(core, per_chip), used, budget) for core, used in enumerate(needs)]
    where = "the first core" if footprint.first else "each core"
    rest = f"\nand {tp - MAX_ROWS} more cores alike" if tp > MAX_ROWS else ""
    return (
        f"NRT_RESOURCE (4): {model.architecture} with {num_params(model) / 1e9:.2f}B parameters in "
        f"{main_format(model, shape.formats)} does not fit on {instance.name} with tensor_parallel_size {tp}: "
        f"{where} lacks {over / GIB:.2f} GiB "
        f"(kv is the least that one sequence of max_model_len {shape.max_model_len} needs)\n"
        f"{account_table(cores)}{rest}"
    )


def _advice(model: ModelSpec, instance: Instance, shape: ServingShape, utilization: float, dp: int) -> str:
    """Return the flags of the smallest instance that holds the model, preferably of the same family."""
    options = list(alternatives(model, shape, utilization, dp))
    family = instance.name.split(".")[0]
    same = [option for option in options if option[0].name.split(".")[0] == family]
    if not options:
        return "no instance of the catalogue holds it; a shorter max_model_len or a smaller model may"
    best, tp = (same or options)[0]
    groups = f" --data-parallel-size {dp}" if dp > 1 else ""
    return f"the smallest that holds it: --device {best.name} --tensor-parallel-size {tp}{groups}"
