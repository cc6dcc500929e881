"""Limits of the tokens of a transcript: which may come next, given those before.

Times come in pairs, the end of a segment and the beginning of the next, and never go back (Radford et al. 2022, section
2.3). A time is written where all times together are likelier than any other token, as in transformers'
WhisperTimeStampLogitsProcessor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..types import TranscriptRules

Row = npt.NDArray[np.float32]


def apply_rules(row: Row, rules: TranscriptRules, written: Sequence[int], ends: Sequence[int]) -> None:
    """Set the logits of tokens that may not follow `written` to -infinity in `row`, [vocab].

    `ends` are the end tokens. They and the special tokens lie between the text's tokens and the times.
    """
    row[list(rules.suppressed)] = -np.inf
    if not written:
        row[list(rules.begin_suppressed)] = -np.inf
    if rules.first_time is not None:
        _limit_times(row, rules.first_time, written, min(ends, default=rules.first_time))
        if not written:
            _begin_with_time(row, rules.first_time, rules.max_initial_time)
        _prefer_times(row, rules.first_time)


def _limit_times(row: Row, first: int, written: Sequence[int], end: int) -> None:
    row[first - 1] = -np.inf  # the token that says that there are no times
    is_time = [len(written) < i or written[-i] >= first for i in (1, 2)]
    follows_one = bool(written) and is_time[0]
    if follows_one and is_time[1]:
        row[first:] = -np.inf
    elif follows_one:
        row[:end] = -np.inf
    last = next((token for token in reversed(written) if token >= first), None)
    if last is not None:
        row[first : last + (not (follows_one and not is_time[1]))] = -np.inf


def _begin_with_time(row: Row, first: int, most: int | None) -> None:
    row[:first] = -np.inf
    if most is not None:
        row[first + most + 1 :] = -np.inf


def _prefer_times(row: Row, first: int) -> None:
    """Leave only times if they are together likelier than the likeliest other token."""
    times, rest = row[first:].astype(np.float64), row[:first].max(initial=-np.inf)
    peak = times.max(initial=-np.inf)
    if np.isfinite(peak) and peak + np.log(np.exp(times - peak).sum()) > rest:
        row[:first] = -np.inf
