"""The encoder of a model with two stacks: a pass over the texts or the windows of sound of one step.

They are packed one after the other, without padding. The pass leaves keys and values of each decoder layer in the
blocks of each encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...kernels.program import Program
from ...kernels.workers import WorkerPool
from ...types import Encoding, Request, SamplingParams, ScheduledSeq
from ..step_inputs import StepInputs
from .sound import SoundStem

_NO_SAMPLE = SamplingParams(max_tokens=0)


@dataclass(frozen=True, slots=True)
class SourceEncoder:
    """Runs the encoder's program. Implements neuronserve.server.engine.runner.Encoder."""

    pool: WorkerPool
    program: Program
    inputs: StepInputs
    block_size: int
    longest: int  # positions of a text, or of each window of sound
    vocab_size: int
    stem: SoundStem | None = None  # what begins the stream of sound; None: texts are read

    def encode(self, encodings: Sequence[Encoding]) -> None:
        """Run one pass. Raises StepTooLarge, having computed nothing, when the items exceed the inputs."""
        self.inputs.fill(list(self._texts(encodings)))
        if self.stem is not None:
            self.stem.fill([each.item for each in encodings])
        self.pool.run(self.program, self.inputs.address)

    def refusal(self, request: Request) -> str | None:
        if len(request.media) != 1:
            return f"the request has {len(request.media)} texts or windows of sound: the encoder reads one"
        [item] = request.media
        if self.stem is not None:
            return self.stem.refusal(item)
        if item.dtype != "int32" or not 1 <= item.num_tokens <= self.longest:
            return f"the encoder reads a text of 1 to {self.longest} tokens: the request has {item.num_tokens}"
        ids = np.frombuffer(item.pixels, np.int32)
        is_whole = len(ids) == item.num_tokens and ids.min() >= 0 and ids.max() < self.vocab_size
        return None if is_whole else f"the text is not one of {item.num_tokens} tokens of this model"

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
