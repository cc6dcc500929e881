"""Plain models that a calibration must beat, on the same rows and as unseen by them. They are reported, never used."""

from __future__ import annotations

import numpy as np

from neuronserve.planner.calibrate.fit import NAMES, Problem, Vector
from neuronserve.planner.calibrate.selection import Labels, Rows, left_out

# Bytes of weights and cache, layers and slots for a decode step; operations and calls for a prompt.
SIX = ("weights", "kv", "layer_launch", "slot_layer", "prefill_matmul", "prefill_call")
COMPUTE = ("decode_matmul", "prefill_matmul", "attention")
MEMORY = ("weights", "kv")


def six_coefficients(problem: Problem, labels: Labels, rows: Rows) -> Vector:
    """Errors of a fit of six coefficients to the rows with another label."""
    terms = tuple(NAMES.index(name) for name in SIX)
    return left_out(problem, labels, rows, lambda kept: problem.fit(terms, kept))


def roofline(problem: Problem) -> Vector:
    """Errors of the data sheet alone: the longer of all operations and all bytes at their peaks."""
    compute, memory = (
        problem.work[:, [NAMES.index(name) for name in names]].sum(axis=1) for names in (COMPUTE, MEMORY)
    )
    return np.asarray(np.maximum(compute, memory) / problem.seconds - 1)
