"""Tensors whose files have more dimensions than the model: kernels of convolutions as matrices, rows as vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from .stored import StoredTensor


@dataclass(frozen=True, slots=True)
class ReshapedTensor:
    """The values of `stored` in another shape."""

    stored: StoredTensor
    shape: tuple[int, ...]

    @property
    def path(self) -> Path:
        return self.stored.path

    @property
    def dtype(self) -> str:
        return self.stored.dtype

    @property
    def has_values(self) -> bool:
        return self.stored.has_values

    def rows(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Return [begin, end) of the first axis."""
        if self.stored.shape[0] == self.shape[0]:
            return self.stored.rows(begin, end).reshape(-1, *self.shape[1:])
        return self.stored.rows(0, self.stored.shape[0]).reshape(self.shape)[begin:end]


def with_shapes(
    tensors: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]]
) -> Mapping[str, StoredTensor]:
    """Return `tensors`, those with more dimensions than `expected` and as many values in the shape expected."""
    found = dict(tensors)
    for name, shape in expected.items():
        stored = found.get(name)
        if stored is not None and len(stored.shape) > len(shape) and math.prod(stored.shape) == math.prod(shape):
            found[name] = ReshapedTensor(stored, shape)
    return found
