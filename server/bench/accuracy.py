"""Accuracy of weight formats: a model's logits and perplexity against float32 in this engine, on the same text.

Logits are compared at every position of teacher-forced windows. The relative error of the logits is
||l - l32|| / ||l32|| over all positions, each row less its mean, which softmax ignores. The KL divergence is that of
the format's next tokens from those of float32.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ..config import EngineConfig
from ..config.formats import Dtype, Quantization, WeightFormat
from ..engine.load.loading import load_engine
from ..engine.load.weights import OnProgress
from .options import MeasuredFormat
from .windows import Window

REFERENCE: WeightFormat = "float32"
_LOGIT_ROWS = 64  # computed in one step

Logits = npt.NDArray[np.float32]  # [tokens of one window, vocab]


@dataclass(frozen=True, slots=True)
class FormatAccuracy:
    """Accuracy of one format against float32, over `num_tokens` positions."""

    weights: MeasuredFormat
    num_tokens: int
    relative_logits_error: float
    p99_relative_logits_error: float  # of single positions
    kl_divergence: float  # mean over positions, in nats
    top1_agreement: float  # share of positions with the same likeliest token
    perplexity: float
    perplexity_delta: float  # perplexity divided by that of float32, minus 1

    def as_json(self) -> dict[str, float | str]:
        return asdict(self)


@dataclass(slots=True)
class _Sums:
    """Sums over positions: squared norms, divergences, and nats of the next tokens."""

    errors: list[float]
    error_squared: float = 0.0
    norm_squared: float = 0.0
    divergence: float = 0.0
    num_same: int = 0
    nats: float = 0.0
    num_scored: int = 0

    def add(self, window: Window, logits: Logits, reference: Logits) -> None:
        for first in range(0, len(window), _LOGIT_ROWS):  # float64 rows of a large vocabulary fill memory
            rows = slice(first, first + _LOGIT_ROWS)
            self._add_rows(logits[rows], reference[rows], window[first + 1 : first + _LOGIT_ROWS + 1])

    def _add_rows(self, logits: Logits, reference: Logits, following: Sequence[int]) -> None:
        """Add neighbouring positions and the tokens that follow them; the last position of a window has none."""
        expected, actual = _centered(reference), _centered(logits)
        error = np.square(actual - expected).sum(axis=1)
        norm = np.square(expected).sum(axis=1)
        self.errors += np.sqrt(error / norm).tolist()
        self.error_squared += float(error.sum())
        self.norm_squared += float(norm.sum())
        log_expected = log_softmax(expected)
        self.divergence += float((np.exp(log_expected) * (log_expected - log_softmax(actual))).sum())
        self.num_same += int((actual.argmax(axis=1) == expected.argmax(axis=1)).sum())
        self.nats += nats(actual[: len(following)], following)
        self.num_scored += len(following)

    def result(self, weights: MeasuredFormat, reference_perplexity: float | None) -> FormatAccuracy:
        perplexity = math.exp(self.nats / self.num_scored) if self.num_scored else math.nan
        return FormatAccuracy(
            weights=weights,
            num_tokens=len(self.errors),
            relative_logits_error=math.sqrt(self.error_squared / self.norm_squared),
            p99_relative_logits_error=float(np.quantile(self.errors, 0.99)),
            kl_divergence=self.divergence / len(self.errors),
            top1_agreement=self.num_same / len(self.errors),
            perplexity=perplexity,
            perplexity_delta=perplexity / (reference_perplexity or perplexity) - 1.0,
        )


def _centered(logits: Logits) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    centered: npt.NDArray[np.float64] = wide - wide.mean(axis=1, keepdims=True)
    return centered


def log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Log-probabilities of rows of logits [T, vocab]."""
    shifted = logits - logits.max(axis=1, keepdims=True, initial=-np.inf)
    found: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found


def nats(logits: npt.NDArray[np.float64], following: Sequence[int]) -> float:
    """Total negative log-likelihood of the tokens that follow: `logits` [T, vocab] at the positions before them."""
    return -float(log_softmax(logits)[np.arange(len(following)), list(following)].sum())


class AccuracyBench:
    """Measures one format after the other. The logits of float32 are kept in files: they may exceed memory."""

    def __init__(
        self, config: EngineConfig, texts: list[Window], on_progress: OnProgress, on_window: Callable[[], None]
    ):
        longest = max(len(window) for window in texts)
        self._config = replace(
            config,
            max_model_len=max(2, longest),
            max_num_seqs=_LOGIT_ROWS,
            max_num_batched_tokens=_LOGIT_ROWS,
            num_blocks_override=None,
            enable_prefix_caching=False,
        )
        self._texts, self._on_progress, self._on_window = texts, on_progress, on_window

    def measure(self, formats: Sequence[MeasuredFormat]) -> list[FormatAccuracy]:
        """Measure float32, then each of `formats`. Raises StartError as loading does."""
        with tempfile.TemporaryDirectory(prefix="neuronserve-accuracy-") as scratch:
            kept = [Path(scratch, f"{i}.npy") for i in range(len(self._texts))]
            sums = _Sums([])
            for path, window, logits in zip(kept, self._texts, self._logits(REFERENCE), strict=True):
                np.save(path, logits)
                sums.add(window, logits, logits)
            results = [sums.result(REFERENCE, None)]
            for weights in formats:
                if weights != REFERENCE:
                    results.append(self._against(kept, weights, results[0].perplexity))
            return results

    def _against(self, kept: list[Path], weights: MeasuredFormat, perplexity: float) -> FormatAccuracy:
        sums = _Sums([])
        for path, window, logits in zip(kept, self._texts, self._logits(weights), strict=True):
            sums.add(window, logits, np.load(path, mmap_mode="r"))
        return sums.result(weights, perplexity)

    def _logits(self, weights: MeasuredFormat) -> Iterator[Logits]:
        """Yield the logits of every window, computed by an engine of this format."""
        engine = load_engine(_with_weights(self._config, weights), self._on_progress)
        try:
            for window in self._texts:
                yield engine.runner.logits(window)
                self._on_window()
        finally:
            engine.runner.close()


def _with_weights(config: EngineConfig, weights: MeasuredFormat) -> EngineConfig:
    """Set the format and its dtype: all formats but float32 compute in bfloat16, with a bfloat16 KV cache."""
    dtype: Dtype = "float32" if weights == "float32" else "bfloat16"
    quantization: Quantization | Literal["none"] | None = None
    if weights != "auto":
        quantization = next((name for name in get_args(Quantization) if name == weights), "none")
    return replace(config, dtype=dtype, quantization=quantization, allow_unsupported_types=True)
