"""Loading of a stage behind the first: its layers, its part of the KV cache, and their program."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from ...config import EngineConfig
from ...kernels.program import Program
from ...kernels.workers import WorkerPool
from ..graph_slice import GraphSlice
from ..load.inventory import core_memory, host_bytes
from ..load.loading import ModelLoading
from ..load.weights import OnProgress
from ..lowering import build_program
from ..step_inputs import StepInputs
from .rows import Rows, stream_of
from .wire import StageReady


@dataclass(frozen=True, slots=True)
class StageProgram:
    """Program of a stage, and its memory."""

    pool: WorkerPool
    program: Program
    inputs: StepInputs
    stream: Rows


def load_stage(
    config: EngineConfig, number: int, on_progress: OnProgress, agree: Callable[[int, str], int]
) -> tuple[StageProgram, StageReady]:
    """Load stage `number`; return its program, and its account for the first stage.

    `agree` takes the blocks that this stage can hold and their layout, and returns those of all. Raises StartError.
    """
    loading = ModelLoading(config, on_progress, stage=number, agree=agree)
    placed = loading.place()
    at, ledger = placed.placement, placed.ledger
    program = build_program(at, part=GraphSlice(range(at.spec.num_layers), False, "stream"))
    pool, inputs = loading.machine.prepared(at, program.kernels)
    cores = range(ledger.num_cores)
    account = StageReady(
        core_ids=loading.core_ids,
        core_names=tuple(ledger.core_name(core) for core in cores),
        memory=tuple(core_memory(ledger, core) for core in cores),
        host_memory=host_bytes(at.cores),
        pid=os.getpid(),
    )
    return StageProgram(pool, program, inputs, stream_of(at)), account
