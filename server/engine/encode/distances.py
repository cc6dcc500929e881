"""The bias that MPNet adds to scores: a learned number for each head and bucket of distances, as a table of distances.

Buckets are T5's (Raffel et al. 2020, section 2.1) in both directions. Half of them are for keys behind the query. In
each half, half are for one distance each and the others for ranges that grow by the logarithm up to 128 tokens.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ...checkpoint.checkpoint import Checkpoint
from ...device.attention_layout import CHUNK
from ...errors import CheckpointError

MAX_DISTANCE = 128
Float32 = npt.NDArray[np.float32]


def buckets(distances: npt.NDArray[np.int64], num_buckets: int) -> npt.NDArray[np.int64]:
    """Return the bucket of each distance, the key's position minus the query's.

    Computed in float32, as in training: the bucket of a distance at an edge depends on it.
    """
    half = num_buckets // 2
    exact, away = half // 2, np.abs(distances)
    ratio = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact)) / np.float32(
        math.log(MAX_DISTANCE / exact)
    )
    far = np.minimum(exact + (ratio * np.float32(half - exact)).astype(np.int64), half - 1)
    found: npt.NDArray[np.int64] = np.where(away < exact, away, far) + half * (distances > 0)
    return found


def row_length(max_length: int) -> int:
    """Columns of the table: every distance, and the chunk that a kernel reads beyond the last key."""
    return 2 * max_length + CHUNK


def distance_bias(checkpoint: Checkpoint, name: str, shape: tuple[int, int], max_length: int) -> Float32:
    """Return the bias of each distance, [heads, row_length]; distance 0 is in column `max_length`.

    Raises CheckpointError when the tensor, [buckets, heads], is missing or has another shape.
    """
    if not checkpoint.has(name):
        raise CheckpointError("model.safetensors", "missing from the safetensors files", name)
    values = checkpoint.load(name)
    if values.shape != shape:
        raise CheckpointError(
            "model.safetensors", f"has shape {list(values.shape)}, config.json makes it {list(shape)}", name
        )
    distances = np.arange(row_length(max_length)) - max_length
    return np.ascontiguousarray(values[buckets(distances, shape[0])].T)
