"""Measurements of an accelerator with known coefficients, which a fit must find."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from neuronserve.planner.calibrate.observation import Observation
from neuronserve.server.cost.evidence import Phase, Point
from neuronserve.server.cost.shape import matrix_billions
from neuronserve.server.cost.terms import TERMS
from neuronserve.server.cost.work import Runtime, StepWork, Work
from neuronserve.server.device.catalog import instance
from neuronserve.server.models.sizes import DecoderSizes
from neuronserve.server.models.spec import ModelSpec
from tests.cost.pricing import LLAMA2_7B, LLAMA3_8B

LLAMA2_13B = DecoderSizes(40, 5120, 13824, 40, 40, 128, 32000).spec()
SHAPES = {"Llama-2-7B": LLAMA2_7B, "Llama-2-13B": LLAMA2_13B, "Llama-3-8B": LLAMA3_8B}
SOURCES = ("docs", "blog")
BATCHES = (1, 4, 16, 64)
POSITIONS = (256, 4096)

# Far from where a fit starts, and within what physics allows.
TRUTH = {
    "weights": 1.9,
    "kv": 1.5,
    "layer_launch": 9e-5,
    "decode_matmul": 1.4,
    "slot_layer": 4e-6,
    "dequant": 7e-12,
    "prefill_matmul": 2.2,
    "activation": 2e-6,
    "attention": 5.0,
    "prefill_call": 2e-2,
    "prefill_weights": 1.9,
    "kv_gather": 2e-9,
}


def seconds_of(work: Work, coefficients: dict[str, float]) -> float:
    return sum(units * coefficients.get(name, 0.0) for name, units in work.items())


def made_by(coefficients: dict[str, float], observations: Iterable[Observation]) -> list[Observation]:
    """Return the same steps on an accelerator with these coefficients."""
    return [replace(o, seconds=seconds_of(o.work, coefficients)) for o in observations]


def noisy(observations: Sequence[Observation], share: float, seed: int = 0) -> list[Observation]:
    """Return times with a normal relative error of `share`; repeated calls give the same."""
    factors = np.exp(np.random.default_rng(seed).normal(0.0, share, len(observations)))
    return [replace(o, seconds=o.seconds * float(f)) for o, f in zip(observations, factors, strict=True)]


def observations(degrees: Sequence[int] = (2, 8), phases: Sequence[Phase] = ("decode", "prefill")) -> list[Observation]:
    """Steps of three models on two degrees, sources and widths of weights in turn; seconds are those of TRUTH."""
    found = []
    grid = product(SHAPES.items(), degrees, BATCHES, POSITIONS, phases)
    for number, ((name, shape), tp, batch, positions, phase) in enumerate(grid):
        found.append(observed(name, shape, (tp, batch, positions), phase, number))
    return made_by(TRUTH, found)


def observed(name: str, shape: ModelSpec, sizes: tuple[int, int, int], phase: Phase, number: int) -> Observation:
    """Return observation `number` of a grid; `sizes` are the degree, the batch and the positions."""
    tp, batch, positions = sizes
    kind = number // 2  # phases come in pairs
    runtime = Runtime("int8" if kind % 3 == 0 else "bf16", is_continuous=bool(kind % 2))
    steps = StepWork(shape, instance("inf2.48xlarge"), tp, runtime)
    work = steps.decode(batch, positions) if phase == "decode" else steps.prefill(positions, min(batch, 4))
    source = SOURCES[kind // 2 % len(SOURCES)]
    point = Point(
        phase,
        "Inferentia2",
        matrix_billions(shape),
        tp,
        batch,
        positions,
        steps.weight_bytes,
        shape.experts is not None,
    )
    series = (phase, source, shape, tp, batch, positions)
    return Observation(str(number), name, source, 28, shape, f"{phase}_dense_inf2", series, point, 1.0, work)


def bare(steps: Iterable[Observation]) -> list[Observation]:
    """Return steps with few optional kinds of work, so that the choice of terms is quick."""
    names = {name for name, term in TERMS.items() if not term.is_optional} | {"slot_layer"}
    return [replace(o, work={name: units for name, units in o.work.items() if name in names}) for o in steps]


assert set(TRUTH) <= set(TERMS)
