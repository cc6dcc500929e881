"""The encoder of a model with two stacks: a pass over the texts or the windows of sound of one step.

They are packed one after the other, without padding. The pass leaves keys and values of each decoder layer in the
blocks of each encoding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...kernels.program import Program
from ...kernels.workers import WorkerPool
from ...types import Encoding, Request, SamplingParams, ScheduledSeq
from ..step_inputs import StepInputs
from .sound import SoundStem

_NO_SAMPLE = SamplingParams(max_tokens=0)
CELL_BYTES = 4  # of a token, and of an element of features


@dataclass(frozen=True, slots=True)
class SourceEncoder:
    """Runs the encoder's program. Implements neuronserve.server.engine.runner.Encoder."""

    pool: WorkerPool
    program: Program
    inputs: StepInputs
    block_size: int
    longest: int  # positions of a text, or of each window of sound
    stem: SoundStem | None = None  # what begins the stream of sound; None: texts are read

    def encode(self, encodings: Sequence[Encoding]) -> None:
        """Run one pass. Raises StepTooLarge, having computed nothing, when the items exceed the inputs."""
        self.inputs.fill(list(self._texts(encodings)))
        if self.stem is not None:
            self.stem.fill([each.item for each in encodings])
        self.pool.run(self.program, self.inputs.address)

    def refusal(self, request: Request) -> str | None:
        shown = ", ".join(f"{list(item.shape)} of {item.num_tokens} positions" for item in request.media)
        least, expected = 1, f"one text of up to {self.longest} tokens"
        if self.stem is not None:
            least, expected = self.longest, f"sound of shape {list(self.stem.shape)}"
        for item in request.media[: len(request.media) == 1]:
            shape, kind = ((item.num_tokens,), "int32") if self.stem is None else (self.stem.shape, "float32")
            is_whole = (item.shape, item.dtype, len(item.pixels)) == (shape, kind, CELL_BYTES * math.prod(shape))
            if is_whole and least <= item.num_tokens <= self.longest:
                return None
        return f"the encoder reads {expected}: the request has {shown or 'nothing for it'}"

    def _texts(self, encodings: Sequence[Encoding]) -> Iterator[ScheduledSeq]:
        """Yield each item as a sequence with blocks of its own in the encoder's pool, and those of the encoding."""
        block = 0
        for each in encodings:
            count, is_text = each.item.num_tokens, self.stem is None
            ids = tuple(np.frombuffer(each.item.pixels, np.int32).tolist()) if is_text else (0,) * count
            end = block + -(-count // self.block_size)
            tables = range(block, end), each.blocks
            yield ScheduledSeq(each.request_id, ids, 0, tables, False, _NO_SAMPLE, (), 0)
            block = end
