"""Types of the weights that a plan compares, and whether an instance supports them."""

from __future__ import annotations

from typing import Literal, get_args

from ...server.config.formats import Quantization
from ...server.device.instances import Instance
from ...server.placement.fit import missing_type

WeightDtype = Literal["bfloat16", "int8", "fp8", "int4", "mxfp4"]
DTYPES: tuple[WeightDtype, ...] = get_args(WeightDtype)
COMPARED: tuple[WeightDtype, ...] = ("bfloat16", "int8", "fp8")  # the default: types of Neuron's own software
QUANTIZATION: dict[WeightDtype, Quantization | None] = {
    "bfloat16": None,
    "int8": "int8-weight-only",
    "fp8": "fp8",
    "int4": "int4",
    "mxfp4": "mxfp4",
}


def why_no_type(dtype: WeightDtype, part: Instance) -> str:
    """Return why `part` cannot serve weights of a type; empty if it can."""
    if dtype == "fp8" and not any(name.endswith("fp8") for name in part.chip.dtypes):
        return f"{part.chip.name} has no 8-bit float type"
    return missing_type(QUANTIZATION[dtype], part)
