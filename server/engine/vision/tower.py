"""A vision encoder on the first core of a group: the processed pixels of one picture in, its vectors out.

The first core computes it for all: a picture is encoded once, and its vectors are read on every core as the embeddings
are. Layers run as programs over one stream: a program ends where states are tapped, or where windows begin or end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16

from ...kernels.program import Program
from ...kernels.workers import WorkerPool
from ...models.vision import VisionSpec
from ...types import MediaItem, SamplingParams, ScheduledSeq
from ..operands import Placement
from ..step_inputs import StepInputs
from . import geometry
from .checks import grid_of, num_windows, refusal
from .connector import Float32, Step

_NO_SAMPLE = SamplingParams(max_tokens=0)


@dataclass(frozen=True, slots=True)
class Stage:
    """Neighbouring layers that are one program."""

    program: Program
    is_full: bool  # tokens attend to the whole picture, not to their window
    connector: Step | None  # of the states after it; None: they are not read


@dataclass(frozen=True, slots=True)
class PatchLayers:
    """Layers that make the first stream of patches, with weights."""

    project: Step
    norm: Step | None
    table: Float32 | None  # learned positions
    class_token: Float32 | None  # [1, hidden], a token beside the patches of each crop


class VisionTower:
    """Encodes one picture at a time. Not thread-safe."""

    def __init__(
        self,
        placement: Placement,
        pool: WorkerPool,
        inputs: StepInputs,
        layers: tuple[PatchLayers, Sequence[Stage]],
        sizes: tuple[VisionSpec, int],
    ) -> None:
        """`sizes`: the description, and the elements of a vector that the text's stream takes, padding included."""
        self._placement, self._pool, self._inputs = placement, pool, inputs
        self._patches, self._stages = layers
        self._vision, self._width = sizes
        buffers = placement.buffers
        self._hidden: Float32 = buffers.hidden.array(np.float32, -1, buffers.widths.hidden)
        self.max_patches, self._max_windows = len(inputs.token_ids), inputs.block_tables.shape[1]

    def encode(self, item: MediaItem) -> Float32:
        """Return the vectors of a picture, [num_tokens, sections * width], each section padded with zeros.

        The picture must have passed `refusal`.
        """
        _, height, width = grid_of(item, self._vision)
        rows, per_frame = self._patches_of(item, height, width), height * width
        windows = num_windows(self._vision, height, width)
        most = min(self.max_patches // (per_frame + self._vision.patch.num_classes), self._max_windows // windows)
        most *= per_frame
        parts = [self._encode(rows[first : first + most], (height, width)) for first in range(0, len(rows), most)]
        sections = [np.concatenate(part) for part in zip(*parts, strict=True)]
        vectors = np.zeros((item.num_tokens, len(sections), self._width), np.float32)
        for i, section in enumerate(sections):
            vectors[:, i, : section.shape[1]] = section
        return vectors.reshape(len(vectors), -1)

    def refusal(self, item: MediaItem) -> str | None:
        """Return why a picture cannot be encoded; None when it can."""
        return refusal(item, self._vision, self.max_patches, self._max_windows)

    def _patches_of(self, item: MediaItem, height: int, width: int) -> Float32:
        """Return the patches of all frames or crops, one after the other."""
        kind = np.dtype(bfloat16) if item.dtype == "bfloat16" else np.dtype(np.float32)
        pixels = np.frombuffer(item.pixels, kind).reshape(item.shape).astype(np.float32, copy=False)
        factor, shift = self._vision.patch.pixel_scale
        if pixels.ndim == 2:
            return pixels * np.float32(factor) + np.float32(shift) if (factor, shift) != (1.0, 0.0) else pixels
        size = self._vision.patch.size
        split = pixels[:, :, : height * size, : width * size].reshape(len(pixels), -1, height, size, width, size)
        return split.transpose(0, 2, 4, 1, 3, 5).reshape(-1, self._vision.patch.values)

    def _encode(self, patches: Float32, grid: geometry.Square) -> list[Float32]:
        """Return the vectors of whole frames by section: of the last states, then of each tap."""
        vision, per_frame = self._vision, grid[0] * grid[1]
        stream = self._patches.project(patches, grid)
        if (token := self._patches.class_token) is not None:
            crops = stream.reshape(-1, per_frame, stream.shape[1])
            stream = np.concatenate([geometry.with_class(crop, vision.patch, token) for crop in crops])
            per_frame += 1
        count = len(stream)
        if self._patches.table is not None:
            learned = geometry.positions(vision.patch, self._patches.table, grid)
            stream = (stream.reshape(-1, *learned.shape) + learned).reshape(count, -1)
        if self._patches.norm is not None:
            stream = self._patches.norm(stream, grid)
        order, lengths = np.arange(per_frame), list[int]()
        if vision.window:
            order, lengths = geometry.windows(vision, grid)
        whole = (np.arange(0, count, per_frame)[:, None] + order).ravel()
        self._hidden[:count] = 0.0
        self._hidden[:count, : stream.shape[1]] = stream[whole]
        self._turn(grid, whole)
        back, found = np.argsort(whole), list[Float32]()
        for stage in self._stages:
            self._run(stage, [per_frame] * (count // per_frame) if stage.is_full else lengths * (count // per_frame))
            if stage.connector is not None:
                states = self._hidden[:count, : vision.hidden_size][back]
                found.append(stage.connector(geometry.without_class(states, vision.patch, per_frame), grid))
        return [found[-1], *found[:-1]]

    def _turn(self, grid: geometry.Square, order: npt.NDArray[np.int64]) -> None:
        """Fill in the rotary table of each patch."""
        angles = geometry.angles(self._vision, grid)
        if angles is None:
            return
        table = self._placement.tables.ropes[self._placement.spec.rotations[0]]
        cos, sin = (each.array(np.float32, -1, angles.shape[1]) for each in (table.cos, table.sin))
        turned = angles[order % len(angles)]
        cos[: len(order)], sin[: len(order)] = np.cos(turned), np.sin(turned)
        self._inputs.rope_rows[: len(order)] = np.arange(len(order))

    def _run(self, stage: Stage, lengths: Sequence[int]) -> None:
        """Run a program over sequences of these lengths, each with its own blocks for the keys of a layer."""
        size = self._placement.cache.block_size
        ends = list(accumulate(-(-length // size) for length in lengths))
        seqs = [
            ScheduledSeq(str(i), (0,) * length, 0, (range(end - -(-length // size), end),), False, _NO_SAMPLE, (), 0)
            for i, (length, end) in enumerate(zip(lengths, ends, strict=True))
        ]
        self._inputs.fill(seqs)
        self._inputs.turn_by(self._inputs.rope_rows)
        self._pool.run(stage.program, self._inputs.address)
