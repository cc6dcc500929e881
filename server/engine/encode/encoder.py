"""An encoder on its cores: tokens of texts in, a float32 row for each out.

Texts are packed one after the other in steps of many tokens, without padding. A step is one run of the program over
every token of its texts, without a cache. A row does not depend on the other texts, of this step or earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ...config import PoolingLimits
from ...device.hbm import Buffer
from ...errors import InvalidRequest
from ...kernels.program import Program
from ...kernels.workers import WorkerPool
from ...models.heads import Head
from ...types import SamplingParams, ScheduledSeq, TokenizedText
from ..step_inputs import StepInputs
from .head import HeadLayers

Float32 = npt.NDArray[np.float32]
_NO_SAMPLE = SamplingParams(max_tokens=0)


class StateRunner:
    """Computes the last states of the tokens of packed texts. Not thread-safe."""

    def __init__(
        self, pool: WorkerPool, program: Program, inputs: StepInputs, block_size: int, hidden: tuple[Buffer, int, int]
    ) -> None:
        """`hidden` is the stream where the program leaves its states, float32 [tokens, width], and their size."""
        self._pool, self._program, self._inputs, self._block_size = pool, program, inputs, block_size
        buffer, width, self.hidden_size = hidden
        self._hidden: Float32 = buffer.array(np.float32, -1, width)
        self._is_timed = False
        self.timed: tuple[Program, npt.NDArray[np.float64]] | None = None  # as in ModelRunner

    def time_instructions(self, is_on: bool) -> None:
        """Time every instruction in `timed` from the next step on, or stop it."""
        self._is_timed, self.timed = is_on, None

    def run(self, texts: Sequence[TokenizedText]) -> list[Float32]:
        """Return the states of each text, [tokens, hidden]; the next step overwrites them.

        Raises StepTooLarge, having computed nothing, when the texts exceed the inputs.
        """
        self._inputs.fill(list(self._sequences(texts)), token_types=[text.token_types for text in texts])
        if self._is_timed:
            self.timed = self._program, self._pool.trace(self._program, self._inputs.address)
        else:
            self._pool.run(self._program, self._inputs.address)
        ends = np.cumsum([len(text.token_ids) for text in texts])
        return np.split(self._hidden[: ends[-1], : self.hidden_size], ends[:-1])

    def _sequences(self, texts: Sequence[TokenizedText]) -> Iterator[ScheduledSeq]:
        """Yield each text as a sequence with its own blocks for the keys and values of a layer."""
        block = 0
        for i, text in enumerate(texts):
            end = block + -(-len(text.token_ids) // self._block_size)
            yield ScheduledSeq(str(i), text.token_ids, 0, (range(block, end),), False, _NO_SAMPLE, (), 0)
            block = end

    def close(self) -> None:
        """Stop the worker threads."""
        self._pool.close()


class Encoder:
    """A loaded encoder. Not thread-safe."""

    def __init__(self, runner: StateRunner, head: HeadLayers, limits: PoolingLimits, vocab_size: int) -> None:
        self.runner, self.layers, self._vocab_size = runner, head, vocab_size
        self.max_length, self._limits = limits.max_length, limits

    @property
    def head(self) -> Head:
        """The head on the states; `is_classifier`: rows are scores by `labels`, not embeddings."""
        return self.layers.head

    @property
    def size(self) -> int:
        """Values of a row: dimensions of an embedding, or labels."""
        return self.layers.size

    def encode(self, texts: Sequence[TokenizedText], is_raw: bool = False) -> Float32:
        """Return a row for each text, [texts, size]: embeddings or scores. `is_raw`: not normalized, or logits.

        Raises InvalidRequest for a text with no token, too many tokens, or ids beyond the vocabulary.
        """
        for i, text in enumerate(texts):
            self._check(i, text)
        rows = np.empty((len(texts), self.size), np.float32)
        for first, end in self._steps(texts):
            states = self.runner.run(texts[first:end])
            for i, each in enumerate(states, first):
                rows[i] = self.layers.apply(each, is_raw)
        return rows

    def states(self, text: TokenizedText) -> Float32:
        """Return the last states of a text's tokens, [tokens, hidden]. Raises InvalidRequest as `encode`."""
        self._check(0, text)
        return self.runner.run([text])[0].copy()

    def shortened(self, rows: Float32, dimensions: int) -> Float32:
        """Return the first values of each embedding, normalized if embeddings are.

        Raises InvalidRequest when an embedding has fewer.
        """
        if self.head.is_classifier or not 1 <= dimensions <= self.size:
            raise InvalidRequest(f"dimensions is {dimensions}: an embedding has {self.size}", "dimensions")
        cut = [self.layers.shortened(row, dimensions) for row in rows]
        return np.stack(cut) if cut else np.empty((0, dimensions), np.float32)

    def close(self) -> None:
        """Stop the worker threads."""
        self.runner.close()

    def _check(self, i: int, text: TokenizedText) -> None:
        ids, types = text.token_ids, text.token_types
        if not 1 <= len(ids) <= self.max_length:
            raise InvalidRequest(f"text {i} has {len(ids)} tokens: 1 to {self.max_length} are allowed", "input")
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise InvalidRequest(f"text {i} has token {max(ids)}: the vocabulary ends at {self._vocab_size}", "input")
        if types and len(types) != len(ids):
            raise InvalidRequest(f"text {i} has {len(types)} token types for {len(ids)} tokens", "input")

    def _steps(self, texts: Sequence[TokenizedText]) -> Iterator[tuple[int, int]]:
        """Yield ranges of neighbouring texts that fill a step each."""
        first = tokens = 0
        for i, text in enumerate(texts):
            tokens += len(text.token_ids)
            if i > first and (tokens > self._limits.max_num_tokens or i - first == self._limits.max_num_texts):
                yield first, i
                first, tokens = i, len(text.token_ids)
        if first < len(texts):
            yield first, len(texts)
