"""The file that llama-perplexity writes with --kl-divergence-base, and the score of other logits against it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.records import BenchmarkError
from neuronserve.server.bench.accuracy import log_softmax

MAGIC = b"_logits_"
HEADER_BYTES = len(MAGIC) + 3 * 4  # tokens of a piece, tokens of the vocabulary, pieces
ROWS = 16  # whose log-probabilities are computed at once
LEAST = -16.0  # log-probabilities below count for nothing, as in llama-perplexity

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Score:
    """Mean KL divergence from the reference in nats, share of positions with the same most likely token, perplexity."""

    kl: float
    top1: float
    perplexity: float


class Reference:
    """Tokens of a text in pieces, and the reference's log-probabilities in the second half of each.

    A row is two float32, the scale and the least log-probability, and a whole number of 16 bits for each token.
    """

    def __init__(self, path: Path) -> None:
        """Raises BenchmarkError for another file."""
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES)
        if len(head) < HEADER_BYTES or not head.startswith(MAGIC):
            raise BenchmarkError(f"{path.name} has no log-probabilities of llama-perplexity")
        self._size, self._vocab, count = np.frombuffer(head, np.int32, 3, len(MAGIC)).tolist()
        self._tokens = np.fromfile(path, np.int32, count * self._size, offset=HEADER_BYTES).reshape(count, -1)
        shape = count, self._size - 1 - self._size // 2, 4 + (self._vocab + 1) // 2 * 2
        self._codes = np.memmap(path, np.uint16, "r", HEADER_BYTES + self._tokens.nbytes, shape)

    def score(self, logits_of: Callable[[Sequence[int]], Rows], begin: Sequence[int]) -> Score:
        """Return the score of a model with logits `[tokens, vocab]`; each piece begins with the tokens `begin`."""
        kl, same, nats, count = 0.0, 0, 0.0, 0
        for tokens, codes in zip(self._tokens.tolist(), self._codes, strict=True):
            logits = logits_of([*begin, *tokens[len(begin) :]])
            first = self._size // 2
            for at in range(0, len(codes), ROWS):
                expected = self._log_probs(codes[at : at + ROWS])
                rows = log_softmax(logits[first + at : first + at + len(expected), : self._vocab].astype(np.float64))
                following = tokens[first + at + 1 : first + at + 1 + len(rows)]
                weights = np.where(expected > LEAST, np.exp(expected), 0.0)
                kl += float((weights * (expected - rows)).sum())
                same += int((rows.argmax(axis=1) == expected.argmax(axis=1)).sum())
                nats -= float(rows[np.arange(len(rows)), following].sum())
                count += len(rows)
        return Score(kl / count, same / count, math.exp(nats / count))

    def _log_probs(self, codes: npt.NDArray[np.uint16]) -> npt.NDArray[np.float64]:
        """Return the log-probabilities of rows, `[rows, vocab]`."""
        scale_and_least = np.ascontiguousarray(codes[:, :4]).view(np.float32).astype(np.float64)
        return codes[:, 4 : 4 + self._vocab] * scale_and_least[:, :1] + scale_and_least[:, 1:]
