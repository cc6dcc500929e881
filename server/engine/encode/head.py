"""The small layers behind pooling, on one row at a time, in float32 on the host: a few thousandths of a pass's work.

One row at a time, since a product of several would be summed in an order that depends on how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.safetensors_file import SafetensorsFile
from neuronserve.server.checkpoint.tensor_files import WEIGHTS
from neuronserve.server.engine.encode.pooling import pooled
from neuronserve.server.errors import CheckpointError
from neuronserve.server.models.heads import Dense, Head, HeadActivation, HeadLayerNorm, HeadStep, Normalize, RowFunction

Float32 = npt.NDArray[np.float32]
Step = Callable[[Float32], Float32]
_LEAST_LENGTH = 1e-12  # a shorter row is divided by it, as in torch's normalize
_erf = np.frompyfunc(math.erf, 1, 1)


def _gelu(row: Float32) -> Float32:
    values: Float32 = (row * 0.5 * (1.0 + _erf(row / math.sqrt(2)).astype(np.float32))).astype(np.float32)
    return values


def _softmax(row: Float32) -> Float32:
    weights: Float32 = np.exp(row - row.max())
    weights /= weights.sum()
    return weights


def _sigmoid(row: Float32) -> Float32:
    """By the exponential of what is not positive, which cannot overflow."""
    small: Float32 = np.exp(-np.abs(row))
    return np.where(row >= 0, 1 / (1 + small), small / (1 + small)).astype(np.float32)


ACTIVATIONS: dict[HeadActivation, Step] = {
    "identity": lambda row: row,
    "tanh": np.tanh,
    "gelu": _gelu,
    "relu": lambda row: np.maximum(row, np.float32(0)),
    "sigmoid": _sigmoid,
    "softmax": _softmax,
}


def normalized(row: Float32) -> Float32:
    """The row over its length."""
    unit: Float32 = row / max(np.sqrt((row * row).sum()), np.float32(_LEAST_LENGTH))
    return unit


@dataclass(frozen=True, slots=True)
class HeadLayers:
    """A head with its weights."""

    head: Head
    size: int  # of what it makes of a text
    steps: tuple[Step, ...]
    is_last_optional: bool  # the last step only scales: to the length of 1, or to scores

    def apply(self, states: Float32, is_raw: bool = False) -> Float32:
        """The row of a text, of its tokens' states [tokens, hidden]; `is_raw`: before it is normalized or scored."""
        row = pooled(states, self.head.pooling)
        for step in self.steps[: -1 if is_raw and self.is_last_optional else None]:
            row = step(row)
        return row

    def shortened(self, row: Float32, dimensions: int, is_raw: bool = False) -> Float32:
        """The first values of an embedding, normalized again where embeddings are.

        Source: Matryoshka representations, Kusupati et al. 2022.
        """
        cut = np.ascontiguousarray(row[:dimensions])
        return normalized(cut) if self.head.is_normalized and not is_raw else cut


def load_head(head: Head, directory: Path, checkpoint: Checkpoint, hidden: int) -> HeadLayers:
    """The weights of `head`, for states of `hidden` values.

    Raises CheckpointError for tensors that are missing or do not fit, or whose rows are not as many as the labels.
    """
    size, steps = hidden * len(head.pooling), []
    for each in head.steps:
        step, size = _step(each, size, directory, checkpoint)
        steps.append(step)
    if head.labels and size != len(head.labels):
        raise CheckpointError(str(directory), f"the head has {size} outputs, config.json {len(head.labels)} labels")
    is_last_optional = bool(head.steps) and isinstance(head.steps[-1], Normalize | RowFunction)
    return HeadLayers(head, size, tuple(steps), is_last_optional)


def _step(step: HeadStep, size: int, directory: Path, checkpoint: Checkpoint) -> tuple[Step, int]:
    """A step for rows of `size`, and the size of what it leaves."""
    match step:
        case Normalize():
            return normalized, size
        case RowFunction(function=function):
            return ACTIVATIONS[function], size
        case Dense():
            return _dense(step, size, directory, checkpoint)
        case HeadLayerNorm():
            return _layer_norm(step, size, directory, checkpoint), size


def _dense(step: Dense, size: int, directory: Path, checkpoint: Checkpoint) -> tuple[Step, int]:
    source = Checkpoint.of_file(SafetensorsFile(directory / step.folder / WEIGHTS)) if step.folder else checkpoint
    weight = _tensor(source, directory, f"{step.module}.weight")
    if weight.ndim != 2 or weight.shape[1] != size:
        shape = list(weight.shape)
        raise CheckpointError(str(directory), f"has shape {shape}, its inputs are {size}", f"{step.module}.weight")
    rows = len(weight)
    bias = _tensor(source, directory, f"{step.module}.bias", rows) if step.has_bias else np.float32(0)
    activation = ACTIVATIONS[step.activation]
    return lambda row: activation(weight @ row + bias), rows


def _layer_norm(step: HeadLayerNorm, size: int, directory: Path, checkpoint: Checkpoint) -> Step:
    weight = _tensor(checkpoint, directory, f"{step.module}.weight", size)
    bias = _tensor(checkpoint, directory, f"{step.module}.bias", size) if step.has_bias else np.float32(0)
    eps = np.float32(step.eps)

    def norm(row: Float32) -> Float32:
        centered = row - row.mean()
        result: Float32 = centered / np.sqrt((centered * centered).mean() + eps) * weight + bias
        return result

    return norm


def _tensor(source: Checkpoint, directory: Path, name: str, size: int | None = None) -> Float32:
    """A tensor, of one dimension where `size` is given."""
    if not source.has(name):
        raise CheckpointError(str(directory), "missing from the safetensors files", name)
    values = source.load(name)
    if size is not None and values.shape != (size,):
        raise CheckpointError(str(directory), f"has shape {list(values.shape)}, must be [{size}]", name)
    return values


def without_scaling(head: Head) -> Head:
    """The head without a last step that only normalizes."""
    if head.steps and isinstance(head.steps[-1], Normalize):
        return replace(head, steps=head.steps[:-1])
    return head
