"""A stage of a pipeline behind the first: it loads its layers and computes them for each step that arrives."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from ...config import EngineConfig
from ...errors import CheckpointError, StartError
from ...kernels.program import Program
from ...kernels.workers import WorkerPool
from ...link.stage_ends import StageEnd
from ..graph_slice import GraphSlice
from ..load.inventory import core_memory, host_bytes, weights_identity
from ..load.loading import ModelLoading
from ..load.weights import OnProgress
from ..lowering import build_program
from ..step_inputs import StepInputs
from .rows import Rows, packed, stream_of, unpack
from .wire import END, Following, Frames, Loaded, Loading, Refused, Setup, StageReady, UseBlocks, receive, send


def run_stage(end: StageEnd, setup: Setup | None = None) -> int:
    """Load what the first stage says, or said already, then compute until its end. Returns the exit code."""
    control = end.control
    try:
        setup = setup or receive(control, Setup)
        downstream = end.behind(setup.next_address)
        if downstream is not None and setup.next_address is not None:
            send(downstream, Following())
        stage = _loaded(setup, control)
    except StartError as error:
        with contextlib.suppress(OSError):
            send(control, Refused(str(error), error.exit_code))
        return error.exit_code
    except (EOFError, OSError):
        return 1  # the first stage has ended
    gc.freeze()  # loaded objects stay: no collection needs to walk them
    gc.enable()
    with contextlib.suppress(OSError):
        _compute(stage, end.before, downstream, control)
    return 0


def _loaded(setup: Setup, control: Connection) -> StageProgram:
    """Load the stage. Raises StartError, and EOFError or OSError when the first stage ends."""
    path = setup.config.model_path
    found = weights_identity(Path(path)).sha256
    if found != setup.weights:
        raise CheckpointError(path, f"its weights are {found[:12]}, and those of the first stage {setup.weights[:12]}")

    def agree(num_blocks: int, layout: str) -> int:
        send(control, Loaded(num_blocks, layout))
        return receive(control, UseBlocks).num_blocks

    loaded, ready = load_stage(setup.config, setup.number, lambda text: send(control, Loading(text)), agree)
    send(control, ready)
    return loaded


def _compute(stage: StageProgram, before: Connection, behind: Connection | None, first: Connection) -> None:
    """Compute each step that arrives, and send it `behind`; the last stage sends the wanted rows to the `first`."""
    frames, inputs, hidden = Frames(before), stage.inputs, stage.stream
    while (data := frames.next()) is not None:
        header = unpack(data, inputs, hidden)
        stage.pool.run(stage.program, inputs.address)
        if behind is None:
            first.send_bytes(hidden[header.wanted].tobytes())
        else:
            behind.send_bytes(packed(header, inputs, hidden))
    (behind or first).send_bytes(END)


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
