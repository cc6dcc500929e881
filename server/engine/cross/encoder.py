"""The encoder of a model with two stacks: a pass over the texts that new sequences of a step read.

The texts of a step are packed one after the other, without padding. The pass leaves keys and values of each decoder
layer in the sequences' blocks, so nothing of it is kept elsewhere: a preempted sequence is encoded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...kernels.program import Program
from ...kernels.workers import WorkerPool
from ...types import SamplingParams, ScheduledSeq
from ..step_inputs import StepInputs
from .queries import num_source_tokens
from .sound import SoundStem

_NO_SAMPLE = SamplingParams(max_tokens=0)


@dataclass(frozen=True, slots=True)
class SourceEncoder:
    """Runs the encoder's program."""

    pool: WorkerPool
    program: Program
    inputs: StepInputs
    block_size: int
    stem: SoundStem | None = None  # what begins the stream of sound; None: texts are read

    def run(self, seqs: Sequence[ScheduledSeq]) -> None:
        """Encode the sources of `seqs`. Raises StepTooLarge, having computed nothing, when they exceed the inputs."""
        if seqs:
            self.inputs.fill(list(self._texts(seqs)))
            if self.stem is not None:
                self.stem.fill([item for seq in seqs if seq.source is not None for item in seq.source.media])
            self.pool.run(self.program, self.inputs.address)

    def _texts(self, seqs: Sequence[ScheduledSeq]) -> Iterator[ScheduledSeq]:
        """Yield each source as a sequence with blocks of its own in the encoder's pool, and those of the decoder's."""
        block = 0
        for seq in seqs:
            ids = () if seq.source is None else seq.source.source_token_ids
            ids = ids or (0,) * num_source_tokens(seq)
            end = block + -(-len(ids) // self.block_size)
            tables = range(block, end), seq.block_tables[-1]
            yield ScheduledSeq(seq.request_id, ids, 0, tables, False, _NO_SAMPLE, (), 0)
            block = end
