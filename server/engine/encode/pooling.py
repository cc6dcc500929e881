"""From the last states of a text's tokens to its row: pooled by the modes of a head, a part of the row for each.

A text is pooled by itself and its tokens are added in their order, so a row does not depend on what else was encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from neuronserve.server.config.formats import PoolingMode

Float32 = npt.NDArray[np.float32]


def _weighted(states: Float32) -> Float32:
    """The mean with weights 1, 2, 3 and so on."""
    weights = np.arange(1, len(states) + 1, dtype=np.float32)[:, None]
    row: Float32 = (states * weights).sum(axis=0) / weights.sum()
    return row


MODES: dict[PoolingMode, Callable[[Float32], Float32]] = {
    "cls": lambda states: states[0],
    "max": lambda states: states.max(axis=0),
    "mean": lambda states: states.sum(axis=0) / np.float32(len(states)),
    "mean_sqrt_len_tokens": lambda states: states.sum(axis=0) / np.sqrt(np.float32(len(states))),
    "weightedmean": _weighted,
    "lasttoken": lambda states: states[-1],
}


def pooled(states: Float32, modes: Sequence[PoolingMode]) -> Float32:
    """The row of a text, [modes * hidden], of its tokens' states [tokens, hidden]."""
    return np.concatenate([MODES[mode](states) for mode in modes])
