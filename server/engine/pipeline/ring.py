"""The other stages of an engine, seen from the first: their start, and the steps that go around."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from ...config import EngineConfig
from ...errors import SettingsError
from ..load.inventory import weights_identity
from ..load.weights import OnProgress
from .rows import Rows
from .wire import END, AnyMessage, Frames, Loaded, Setup, StageLost, StageReady, UseBlocks, answer, send


class Ring:
    """Connections to the stages behind the first."""

    def __init__(self, config: EngineConfig, controls: Sequence[Connection], on_progress: OnProgress) -> None:
        """Tell each stage what to load. Raises StageLost and CheckpointError."""
        self._controls, self._on_progress = controls, on_progress
        told = replace(config, pipeline=replace(config.pipeline, key=b""))  # a key never travels
        addresses, weights = config.pipeline.addresses, weights_identity(Path(config.model_path)).sha256
        for number, control in enumerate(controls, 1):
            following = addresses[number] if number < len(addresses) else None
            try:
                send(control, Setup(told, number, weights, following))
            except OSError as error:
                raise StageLost(number) from error
        self._frames: Frames | None = None  # from the last stage, once it computes

    @property
    def size(self) -> int:
        """Number of stages, the first included."""
        return len(self._controls) + 1

    def agree(self, num_blocks: int, layout: str) -> int:
        """Wait until all stages are loaded; return the blocks of the KV cache that each has room for.

        Raises StartError of a stage that could not load, and SettingsError when the layout of one is another.
        """
        loaded = [self._answer(number, Loaded) for number in range(1, self.size)]
        for number, each in enumerate(loaded, 1):
            if each.layout != layout:
                raise SettingsError(
                    f"pipeline_parallel_size is {self.size}: stage {number + 1} has a cache of {each.layout}, the "
                    f"first one of {layout}; the layers with windows and with states must divide evenly"
                )
        agreed = min(num_blocks, *(each.num_blocks for each in loaded))
        for control in self._controls:
            send(control, UseBlocks(agreed))
        return agreed

    def ready(self) -> list[StageReady]:
        """Wait until all stages compute; return what they hold."""
        found = [self._answer(number, StageReady) for number in range(1, self.size)]
        self._frames = Frames(self._controls[-1])
        return found

    def send(self, step: bytes) -> None:
        """Send a step to the second stage. Raises OSError when it has ended."""
        self._controls[0].send_bytes(step)

    def take(self, num_rows: int, into: Rows) -> None:
        """Wait for the rows of the oldest step on its way, and copy them. Raises StageLost."""
        assert self._frames is not None
        data = self._frames.next()
        if data is None:
            raise StageLost(len(self._controls))
        into[:num_rows] = np.frombuffer(data, into.dtype).reshape(num_rows, -1)

    def close(self) -> None:
        """Tell the stages that no step follows."""
        with contextlib.suppress(OSError):
            self.send(END)

    def _answer(self, number: int, kind: type[AnyMessage]) -> AnyMessage:
        return answer(self._controls[number - 1], number, kind, self._on_progress)
