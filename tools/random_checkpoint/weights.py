"""Random weights of a scale that keeps activations and logits near 1, one tensor at a time.

Values come from raw bits of a seeded generator by exact arithmetic: the same on every platform and numpy version.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from ml_dtypes import bfloat16

CHUNK = 1 << 20  # values made at once
SAFETENSORS_DTYPES = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
ITEM_BYTES = {"bf16": 2, "f16": 2, "f32": 4}


def tensor_chunks(
    name: str, shape: tuple[int, ...], dtype: str, seed: int, norm_mean: float = 1.0
) -> Iterator[npt.NDArray[Any]]:
    """Yield the values of tensor `name` in row-major order, flat, in the stored form (BF16 as uint16).

    `norm_mean` is the mean of norm weights: 0 where w stands for 1 + w. A tensor's values depend only on its name and
    the seed, not on the other tensors or on the shards.
    """
    generator = np.random.PCG64([seed, zlib.crc32(name.encode())])
    mean, deviation = _distribution(name, shape, norm_mean)
    size = math.prod(shape)
    for start in range(0, size, CHUNK):
        values = _uniform(generator, min(CHUNK, size - start), deviation)
        yield _stored(values + np.float32(mean) if mean else values, dtype)


def _distribution(name: str, shape: tuple[int, ...], norm_mean: float) -> tuple[float, float]:
    """Return mean and standard deviation."""
    if name.endswith("norm.weight") or (len(shape) == 1 and name.endswith(".weight")):
        return norm_mean, 0.1
    if name.endswith(".bias"):
        return 0.0, 0.2
    return 0.0, shape[-1] ** -0.5  # keeps the variance of the multiplied values; logits have variance 1


def _uniform(generator: np.random.PCG64, size: int, deviation: float) -> npt.NDArray[np.float32]:
    """Return `size` uniform values around 0: 16 random bits each, four to a word of the generator."""
    words = generator.random_raw(-(-size // 4)).astype("<u8", copy=False)
    values: npt.NDArray[np.float32] = words.view("<i2")[:size].astype(np.float32)
    values *= np.float32(deviation * math.sqrt(3) / 2**15)
    return values


def _stored(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    if dtype == "f32":
        return values.astype("<f4", copy=False)
    if dtype == "f16":
        return values.astype("<f2")
    return values.astype(bfloat16).view(np.uint16)  # a file takes no buffer of bfloat16
