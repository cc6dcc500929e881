"""Tables of positions by sines (Vaswani et al. 2017, section 3.5), which files of some families may leave out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..models.names import Names
from .stored import StoredTensor

BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class SineTable:
    """A table [positions, size]: the sines of all frequencies, then the cosines."""

    path: Path
    shape: tuple[int, ...]
    has_last: bool  # the last frequency is 1 / BASE
    dtype: str = "F32"
    has_values: bool = True

    def rows(self, begin: int, end: int) -> npt.NDArray[np.float32]:
        """Return [begin, end) of the positions."""
        frequencies = BASE ** -(2 * np.arange((self.shape[1] + 1) // 2) / (self.shape[1] - 2 * self.has_last))
        angles = np.arange(begin, end)[:, None] * frequencies
        whole = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, : self.shape[1]]
        return whole.astype(np.float32)


def with_sines(
    tensors: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]], names: Names, directory: Path
) -> Mapping[str, StoredTensor]:
    """Return `tensors` and the tables of sines that the files leave out."""
    ending = names.sine_tables
    missing = (name for name in expected if ending and name.endswith(ending) and name not in tensors)
    return {**tensors, **{name: SineTable(directory, expected[name], names.has_last_sine) for name in missing}}
