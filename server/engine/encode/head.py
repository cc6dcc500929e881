"""The head of an encoder: pooling of a text's states to a row, and the small layers after it, in float32 on the host.

Texts are pooled one by one and rows computed one by one, because the order of sums over several would depend on their
number. This is a few thousandths of a pass's work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...checkpoint.checkpoint import Checkpoint
from ...checkpoint.safetensors_file import SafetensorsFile
from ...checkpoint.tensor_files import WEIGHTS
from ...config.formats import PoolingMode
from ...errors import CheckpointError
from ...models.heads import Dense, Head, HeadActivation, HeadLayerNorm, HeadStep, Normalize, RowFunction, TokenOdds
from ...text.tokenizer import load_tokenizer

Float32 = npt.NDArray[np.float32]
Step = Callable[[Float32], Float32]
_LEAST_LENGTH = 1e-12  # divisor of shorter rows, as in torch's normalize
_erf = np.frompyfunc(math.erf, 1, 1)


def _weighted(states: Float32) -> Float32:
    """Mean with weights 1, 2, 3 and so on."""
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
    """Pool the states of a text's tokens, [tokens, hidden], to its row, [modes * hidden]."""
    return np.concatenate([MODES[mode](states) for mode in modes])


def _gelu(row: Float32) -> Float32:
    values: Float32 = (row * 0.5 * (1.0 + _erf(row / math.sqrt(2)).astype(np.float32))).astype(np.float32)
    return values


def _softmax(row: Float32) -> Float32:
    weights: Float32 = np.exp(row - row.max())
    weights /= weights.sum()
    return weights


def _sigmoid(row: Float32) -> Float32:
    """Sigmoid by the exponential of numbers that are not positive, which cannot overflow."""
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
    """Divide a row by its length."""
    unit: Float32 = row / max(np.sqrt((row * row).sum()), np.float32(_LEAST_LENGTH))
    return unit


@dataclass(frozen=True, slots=True)
class HeadLayers:
    """A head with its weights."""

    head: Head
    size: int  # values of a text's row
    steps: tuple[Step, ...]
    is_last_optional: bool  # the last step only scales, to length 1 or to scores

    def apply(self, states: Float32, is_raw: bool = False) -> Float32:
        """Return the row of a text from its tokens' states [tokens, hidden]; `is_raw`: not normalized or scored."""
        row = pooled(states, self.head.pooling)
        for step in self.steps[: -1 if is_raw and self.is_last_optional else None]:
            row = step(row)
        return row

    def shortened(self, row: Float32, dimensions: int, is_raw: bool = False) -> Float32:
        """Return the first values of an embedding, normalized again if embeddings are.

        Source: Matryoshka representations, Kusupati et al. 2022.
        """
        cut = np.ascontiguousarray(row[:dimensions])
        return normalized(cut) if self.head.is_normalized and not is_raw else cut


def load_head(head: Head, directory: Path, checkpoint: Checkpoint, hidden: int) -> HeadLayers:
    """Load the weights of `head`, for states of `hidden` values.

    Raises CheckpointError for missing or misshapen tensors, or when outputs and labels differ in number.
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
    """Return a step for rows of `size`, and the size of its result."""
    match step:
        case Normalize():
            return normalized, size
        case RowFunction(function=function):
            return ACTIVATIONS[function], size
        case Dense():
            return _dense(step, size, directory, checkpoint)
        case TokenOdds(tokens=tokens):
            return _token_odds(tokens, directory, checkpoint), 1
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


def _token_odds(tokens: tuple[str, str], directory: Path, checkpoint: Checkpoint) -> Step:
    tokenizer = load_tokenizer(directory)
    rows = [tokenizer.token_id(token) for token in tokens]
    if None in rows:
        raise CheckpointError(str(directory), f"classifier_from_token is {list(tokens)}: they must be tokens")
    name = next(each for each in ("lm_head.weight", "model.embed_tokens.weight") if checkpoint.has(each))
    no, yes = (checkpoint.load(name, slice(row, row + 1)) for row in rows if row is not None)
    difference: Float32 = yes - no
    return lambda row: difference @ row


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
    """Load a tensor, which must have the shape [size] if `size` is given."""
    if not source.has(name):
        raise CheckpointError(str(directory), "missing from the safetensors files", name)
    values = source.load(name)
    if size is not None and values.shape != (size,):
        raise CheckpointError(str(directory), f"has shape {list(values.shape)}, must be [{size}]", name)
    return values


def without_scaling(head: Head) -> Head:
    """Return the head without a normalization at its end."""
    if head.steps and isinstance(head.steps[-1], Normalize):
        return replace(head, steps=head.steps[:-1])
    return head
